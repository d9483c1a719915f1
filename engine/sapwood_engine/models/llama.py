"""Llama, and what shares its shape: Mistral, SmolLM2."""

from __future__ import annotations

from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.layers.attention import Attention
from sapwood_engine.models.decoder import Block, gated_mlp, qkv
from sapwood_engine.models.weights import Weights


def block(spec: ModelSpec, prefix: str, weights: Weights) -> Block:
    """One layer; biases where the checkpoint's configuration says so."""
    inner = spec.num_heads * spec.head_dim
    return Block(
        attention_norm=weights.norm(f"{prefix}.input_layernorm", spec.hidden_size, spec.norm_eps),
        attention=Attention(
            qkv=qkv(spec, f"{prefix}.self_attn", weights),
            output=weights.linear(inner, {f"{prefix}.self_attn.o_proj": spec.hidden_size}, bias=spec.output_bias),
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
        ),
        mlp_norm=weights.norm(f"{prefix}.post_attention_layernorm", spec.hidden_size, spec.norm_eps),
        mlp=gated_mlp(spec, f"{prefix}.mlp", weights),
    )
