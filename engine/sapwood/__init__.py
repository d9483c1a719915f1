"""The `sapwood` command: finds the program and imports only that."""
