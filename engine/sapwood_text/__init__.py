"""From a request's body to the token ids whose KV an engine computes: the same code in engine and gateway."""
