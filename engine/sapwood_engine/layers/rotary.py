"""Rotary position embedding (Su et al., 2021) with the scaling variants of transformers.

A key is rotated once and then cached, possibly for another request, so its angle may depend on its position
alone. Two variants of transformers choose frequencies by the length of the sequence at hand, ``dynamic`` and
``longrope``; here they are chosen once, by the longest context that is served. Within a dynamic model's own
context length, and for a longrope model served within its original or with sequences beyond it, both agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sapwood_engine.checkpoint.spec import RopeSpec


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of one step's positions, float32 [num_tokens, 1, rotary_dim]."""

    cos: torch.Tensor
    sin: torch.Tensor
    """The first half negated, so that ``x * cos + swap_halves(x) * sin`` rotates."""


class Rotary:
    """Turns positions into a `Rotation`; computed anew each step, so that nothing grows with the context."""

    def __init__(self, rope: RopeSpec, *, head_dim: int, context_length: int, device: torch.device) -> None:
        """``context_length``: most positions served, which `dynamic` and `longrope` choose by."""
        self.inverse, self.amplitude = frequencies(rope, rope.rotary_dim or head_dim, context_length)
        """See `frequencies`."""
        self._inverse = torch.cat((self.inverse, self.inverse)).to(device)
        self._signs = torch.ones_like(self._inverse)
        self._signs[: len(self.inverse)] = -1
        self._signs *= self.amplitude

    def __call__(self, positions: torch.Tensor) -> Rotation:
        """``positions``: int64 [num_tokens]."""
        angles = (positions.to(torch.float32)[:, None] * self._inverse)[:, None, :]
        return Rotation(angles.cos().mul_(self.amplitude), angles.sin().mul_(self._signs))


def rotate(heads: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Return ``heads`` [num_tokens, num_heads, head_dim] rotated: a new contiguous tensor of the same dtype.

    The first ``rotary_dim`` dimensions turn, in float32; what lies beyond is copied.
    """
    rotary_dim = rotation.cos.shape[-1]
    turning = heads if rotary_dim == heads.shape[-1] else heads[..., :rotary_dim]
    turned = turning * rotation.cos
    turned.addcmul_(turning.roll(rotary_dim // 2, -1), rotation.sin)
    turned = turned.to(heads.dtype)
    return turned if turning is heads else torch.cat((turned, heads[..., rotary_dim:]), dim=-1)


def frequencies(rope: RopeSpec, rotary_dim: int, context_length: int) -> tuple[torch.Tensor, float]:
    """Return angles per position, float32 [rotary_dim / 2], and the factor on sines and cosines."""
    p = rope.parameters
    plain = _inverse(rope.theta, rotary_dim)
    match rope.variant:
        case "default":
            return plain, 1.0
        case "linear":
            return plain / p["factor"], 1.0
        case "dynamic":
            return _dynamic(rope, rotary_dim, context_length), 1.0
        case "yarn":
            return _yarn(rope, rotary_dim)
        case "longrope":
            return _longrope(p, plain, context_length)
        case "llama3":
            return _llama3(p, plain), 1.0


def _inverse(theta: float, rotary_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
    return torch.pow(theta, exponents).reciprocal()


def _dynamic(rope: RopeSpec, rotary_dim: int, context_length: int) -> torch.Tensor:
    """NTK-aware scaling: beyond the original length the base grows (u/emozilla, 2023)."""
    factor, original = rope.parameters["factor"], rope.parameters["original_max_position_embeddings"]
    length = max(context_length, original)
    growth = factor * length / original - (factor - 1)
    return _inverse(rope.theta * growth ** (rotary_dim / (rotary_dim - 2)), rotary_dim)


def _yarn(rope: RopeSpec, rotary_dim: int) -> tuple[torch.Tensor, float]:
    """Fast dimensions as they are, slow ones interpolated, a ramp between (Peng et al., 2023)."""
    p = rope.parameters
    factor, original = p["factor"], p["original_max_position_embeddings"]

    def dimension_of(turns: float) -> float:
        """The dimension that turns this often over the original length."""
        return rotary_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(p.get("beta_fast") or 32.0), dimension_of(p.get("beta_slow") or 1.0)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    width = max(high - low, 0.001)
    interpolated = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    plain = _inverse(rope.theta, rotary_dim)
    return plain / factor * interpolated + plain * (1 - interpolated), _yarn_amplitude(p, factor)


def _yarn_amplitude(p: Mapping[str, Any], factor: float) -> float:
    if p.get("attention_factor") is not None:
        return float(p["attention_factor"])

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if p.get("mscale") and p.get("mscale_all_dim"):
        return scale(p["mscale"]) / scale(p["mscale_all_dim"])
    return scale(1.0)


def _longrope(p: Mapping[str, Any], plain: torch.Tensor, context_length: int) -> tuple[torch.Tensor, float]:
    """A factor for every dimension, found by search (Ding et al., 2024)."""
    original = p["original_max_position_embeddings"]
    chosen = p["long_factor"] if context_length > original else p["short_factor"]
    amplitude = p.get("attention_factor")
    if amplitude is None:
        factor = p["factor"]
        amplitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return plain / torch.tensor(chosen, dtype=torch.float32), float(amplitude)


def _llama3(p: Mapping[str, Any], plain: torch.Tensor) -> torch.Tensor:
    """Long waves are stretched, short ones kept, those between blended (Llama 3.1)."""
    factor, original = float(p["factor"]), float(p["original_max_position_embeddings"])
    low, high = float(p["low_freq_factor"]), float(p["high_freq_factor"])
    turns = plain * (original / (2 * math.pi))
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain / factor * (1 - kept) + plain * kept
