"""Attention over paged KV: one protocol, several backends, one conformance suite."""
