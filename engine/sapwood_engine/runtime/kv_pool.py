"""The memory that holds keys and values: allocated once, addressed by page id, never grown.

A page id means the same slots in every layer, so one page table serves the whole model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sapwood_engine.core.step import PageCopy
from sapwood_engine.kernels.huge_pages import HugePages


class KvPool:
    """Keys and values of ``num_pages`` pages in all layers.

    One block of memory ``[num_layers, 2, num_pages, page_size, num_kv_heads, head_dim]``, so that copying a page in
    all layers is one operation. It is not cleared anew: slots may hold anything, and attention backends
    promise to look at no slot beyond a sequence's length. The system hands out its pages as they are first written.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        shape = (num_layers, 2, num_pages, page_size, num_kv_heads, head_dim)
        on_cpu = device is None or device.type == "cpu"
        self._block = HugePages().zeros(shape, dtype) if on_cpu else torch.empty(shape, dtype=dtype, device=device)
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = [(layer[0], layer[1]) for layer in self._block]
        """[num_layers] of (K, V), each [num_pages, page_size, num_kv_heads, head_dim]; views valid until `release`."""

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Do ``copies`` in order, in all layers."""
        for copy in copies:
            tokens = slice(copy.num_tokens)
            self._block[:, :, copy.target, tokens] = self._block[:, :, copy.source, tokens]

    def largest(self, num_tokens: int) -> float:
        """Return the largest absolute value in the first ``num_tokens`` slots, which must have been written."""
        return float(self._block.flatten(2, 3)[:, :, :num_tokens].abs().max())

    def release(self) -> None:
        """Let go of the memory; the pool cannot be used afterwards."""
        self.layers = []
        self._block = self._block.new_empty(0)
