"""Tensors in, tensors out: attention over pages, sampling. No requests, no scheduling."""
