"""Qwen2 and Qwen2.5: Llama's layer; `ModelSpec.qkv_bias` gives q, k and v their biases."""

from __future__ import annotations

from sapwood_engine.models import llama

block = llama.block
