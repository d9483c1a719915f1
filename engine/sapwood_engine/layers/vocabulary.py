"""From token ids to vectors, and from vectors to logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

_WIDENED_ELEMENTS = 1024 * 1024
"""Of the weights, widened to float32 at a time: 4 MB, which the processor's caches hold until it is
multiplied."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """A row for every token id."""

    weight: torch.Tensor
    """[vocab_size, hidden_size]"""

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] -> float32 [num_tokens, hidden_size], a new tensor: where the residual begins."""
        return F.embedding(token_ids, self.weight).float()


Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(float32 [n, hidden_size], weight [vocab_size, hidden_size] of any dtype) -> float32 [n, vocab_size], a new
tensor."""


def widen_in_pieces(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A `Product` on any device: pieces of the weights become float32 one after the other."""
    if weight.dtype == torch.float32:
        return F.linear(hidden, weight)
    vocab_size, hidden_size = weight.shape
    step = max(1, _WIDENED_ELEMENTS // hidden_size)
    logits = hidden.new_empty((len(hidden), vocab_size))
    buffer = hidden.new_empty((min(step, vocab_size), hidden_size))
    for first in range(0, vocab_size, step):
        piece = weight[first : first + step]
        wide = buffer[: len(piece)].copy_(piece)
        torch.mm(hidden, wide.t(), out=logits[:, first : first + step])
    return logits


@dataclass(frozen=True, slots=True)
class Head:
    """Logits in float32, whatever the dtype of the weights.

    A logit of 20 rounded to bfloat16 is off by up to 0.06, more than what lies between the two best ones at
    every twentieth token of SmolLM2; and torch's products on the CPU round to the dtype of their inputs.
    """

    weight: torch.Tensor
    """[vocab_size, hidden_size]"""
    product: Product = widen_in_pieces

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden_size] -> float32 [n, vocab_size], a new tensor."""
        return self.product(hidden.float(), self.weight)
