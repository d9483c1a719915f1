"""Attention compiled for this processor: reads pages in place, whatever their size, and shares the work evenly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sapwood_engine.kernels.attention import cpu_kernels as kernels
from sapwood_engine.kernels.attention.base import AttentionMetadata
from sapwood_engine.kernels.compiled import use_threads
from sapwood_engine.kernels.simd import SMALL_LANES, TAGS


class CpuAttention:
    """`AttentionBackend` over `cpu_kernels`; head_dim must be a multiple of 4."""

    name = "cpu"

    def __init__(self, num_threads: int, *, least_cost: int = kernels.LEAST_COST) -> None:
        """``num_threads``: the most of numba's threads that share the work of a layer.

        ``least_cost``: of a thread's share, in the unit of an item's cost; with less work fewer threads share it.
        """
        self._num_threads = num_threads
        self._least_cost = least_cost
        self._metadata: AttentionMetadata | None = None
        self._kv_indices = np.empty(0, np.int32)
        self._items = np.empty((0, kernels.ITEM_FIELDS), np.int64)
        self._all_shares = np.zeros((num_threads + 1, 2), np.int64)
        self._shares = self._all_shares
        self._divided_for = (0, 0)
        self._scratch_for = (0, 0)
        self._scratch: Any = None
        self._parts: Any = None

    def plan(self, metadata: AttentionMetadata) -> None:
        """Take over the metadata; the work is divided at the first `run`, which knows the heads."""
        self._metadata = metadata
        self._kv_indices = metadata.kv_indices.numpy()
        self._divided_for = (0, 0)

    def run(
        self,
        q: torch.Tensor,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        *,
        scale: float,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """See `AttentionBackend.run`."""
        num_heads, dim = q.shape[1], q.shape[2]
        num_kv_heads = k_pages.shape[2]
        group = num_heads // num_kv_heads
        if self._divided_for != (group, num_kv_heads):
            self._divide(group, num_kv_heads)
        if self._scratch_for != (group, dim):
            self._make_scratch(group, dim)
        element, kv_element = q.element_size(), k_pages.element_size()
        (q_token, q_head, _), (out_token, out_head, _), (_, kv_slot, kv_head, _) = (
            q.stride(),
            out.stride(),
            k_pages.stride(),
        )
        kernels.attend(
            TAGS[q.dtype],
            TAGS[k_pages.dtype],
            q.data_ptr(),
            k_pages.data_ptr(),
            v_pages.data_ptr(),
            out.data_ptr(),
            kernels.Sizes(
                group=group,
                num_kv_heads=num_kv_heads,
                dim=dim,
                page_size=k_pages.shape[1],
                kv_slot=kv_slot * kv_element,
                kv_head=kv_head * kv_element,
                kv_element=kv_element,
                q_token=q_token * element,
                q_head=q_head * element,
                out_token=out_token * element,
                out_head=out_head * element,
                scale=scale,
            ),
            self._kv_indices,
            self._items,
            self._shares,
            self._scratch,
            self._parts,
        )
        return out

    def _divide(self, group: int, num_kv_heads: int) -> None:
        metadata = self._metadata
        assert metadata is not None, "run before plan"
        qo_indptr = metadata.qo_indptr.numpy()
        most = int(qo_indptr[-1])
        if len(self._items) < most:
            self._items = np.empty((most, kernels.ITEM_FIELDS), np.int64)
        num_items = kernels.list_items(
            qo_indptr,
            metadata.kv_indptr.numpy(),
            metadata.kv_last_page_len.numpy(),
            metadata.page_size,
            group,
            self._items,
        )
        num_shares = kernels.divide(self._items, num_items, num_kv_heads, self._least_cost, self._all_shares)
        self._shares = self._all_shares[: num_shares + 1]
        use_threads(num_shares)
        self._divided_for = (group, num_kv_heads)

    def _make_scratch(self, group: int, dim: int) -> None:
        assert dim % SMALL_LANES == 0, f"head_dim {dim} is not a multiple of {SMALL_LANES}"
        rows = max(kernels.TILE_ROWS, group)
        self._scratch = _allocate(self._num_threads, rows, dim)
        self._parts = _allocate(2 * self._num_threads, rows, dim)
        self._scratch_for = (group, dim)


def _allocate(count: int, rows: int, dim: int) -> kernels.Scratch:
    def floats(*shape: int) -> Any:
        return np.zeros(shape, np.float32)

    block = kernels.BLOCK
    return kernels.Scratch(
        queries=floats(count, rows * dim),
        out=floats(count, rows * dim),
        scores=floats(count, rows * block),
        keys=floats(count, dim * block),
        values=floats(count, block * dim),
        maxima=floats(count, rows),
        sums=floats(count, rows),
        rows=np.zeros((count, max(block, dim)), np.int64),
    )
