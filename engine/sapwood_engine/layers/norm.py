"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """``x / rms(x) * weight`` over the last axis, in float32, rounded once to ``dtype``."""

    weight: torch.Tensor
    """float32 [size of the last axis]"""
    eps: float
    dtype: torch.dtype
    """Of the result"""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """A new tensor of the shape of ``x``, whatever its dtype."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(self.dtype)
