"""Matrix products with weights, in the dtype of the weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Linear:
    """``x @ weight.T + bias``."""

    weight: torch.Tensor
    """[out_features, in_features]"""
    bias: torch.Tensor | None = None
    """[out_features]"""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, in_features] -> [num_tokens, out_features], a new tensor."""
        return F.linear(x, self.weight, self.bias)
