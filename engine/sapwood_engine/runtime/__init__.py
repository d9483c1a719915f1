"""Device shell: memory, tensors and the executor that runs steps. Knows nothing of HTTP or requests."""
