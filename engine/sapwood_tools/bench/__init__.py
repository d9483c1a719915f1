"""``sapwood bench``: the six workloads against an OpenAI address, alone or side by side with a peer."""
