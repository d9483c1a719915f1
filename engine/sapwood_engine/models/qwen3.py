"""Qwen3: Llama's layer with q and k normalised head by head."""

from __future__ import annotations

from dataclasses import replace

from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.models import llama
from sapwood_engine.models.decoder import Block
from sapwood_engine.models.weights import Weights


def block(spec: ModelSpec, prefix: str, weights: Weights) -> Block:
    """One layer."""
    plain = llama.block(spec, prefix, weights)
    attention = replace(
        plain.attention,
        q_norm=weights.norm(f"{prefix}.self_attn.q_norm", spec.head_dim, spec.norm_eps),
        k_norm=weights.norm(f"{prefix}.self_attn.k_norm", spec.head_dim, spec.norm_eps),
    )
    return replace(plain, attention=attention)
