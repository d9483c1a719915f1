"""Process shell: the HTTP process's client, the worker process's loop, and the messages between them."""
