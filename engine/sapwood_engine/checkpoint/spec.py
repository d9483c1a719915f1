"""The dimensions of a decoder, whatever file they came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Family = Literal["llama", "qwen2", "qwen3"]
Activation = Literal["silu", "gelu", "gelu_tanh"]
RopeVariant = Literal["default", "linear", "dynamic", "yarn", "longrope", "llama3"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding: base frequency, and the scaling variant with its parameters as in transformers."""

    theta: float
    variant: RopeVariant = "default"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    rotary_dim: int | None = None
    """Dimensions of a head that rotate; None means all."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A dense decoder as a table; every dimension is a count, not bytes."""

    family: Family
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int
    """Longest context that can be served: what the checkpoint states, or its sliding window where that is
    shorter, because the attention backends let a query see every key before it."""
    norm_eps: float
    rope: RopeSpec
    activation: Activation = "silu"
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    eos_token_ids: tuple[int, ...] = ()
