"""The gated feed-forward layer (GLU variants: Shazeer, 2020)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from sapwood_engine.checkpoint.spec import Activation
from sapwood_engine.layers.linear import Linear

_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """``down(activation(gate(x)) * up(x))``; gate and up are one matrix, so that x is read once."""

    gate_up: Linear
    """[2 * intermediate_size, hidden_size], gate above up"""
    down: Linear
    activation: Activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same shape, a new tensor."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(_ACTIVATIONS[self.activation](gate).mul_(up))
