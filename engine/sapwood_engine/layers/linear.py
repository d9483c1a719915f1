"""Matrix products with weights, in the dtype of the weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(slots=True)
class Linear:
    """``x @ weight.T + bias``."""

    weight: torch.Tensor
    """[out_features, in_features]; [0, in_features] once packed"""
    bias: torch.Tensor | None = None
    """[out_features]"""
    packed: torch.Tensor | None = None
    """The weights in oneDNN's own layout."""

    def pack(self) -> None:
        """Lay the weights out as oneDNN's products read them, and let go of ``weight``.

        The same results to the bit, in half the time for few rows: `F.linear` cannot know that its weights
        will come again.
        """
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, None)
        self.weight = self.weight.new_empty((0, self.weight.shape[1]))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, in_features] -> [num_tokens, out_features], a new tensor."""
        if self.packed is not None:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
            return product
        return F.linear(x, self.weight, self.bias)
