"""The compiled step's attention as a backend, without the step around it.

To be imported where the folder for compiled kernels is set: see `kernels.compiled.use_cache`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit, prange

from sapwood_engine.kernels.attention.base import AttentionMetadata
from sapwood_engine.kernels.compiled import EXACT_OPTIONS, use_threads
from sapwood_engine.kernels.cpu_step import units
from sapwood_engine.kernels.cpu_step.attention import AttentionShape, attend_unit
from sapwood_engine.kernels.cpu_step.layout import PANEL
from sapwood_engine.kernels.cpu_step.step import ModelShape, of_thread
from sapwood_engine.kernels.cpu_step.threads import add_atomically
from sapwood_engine.kernels.simd import LANES, TAGS
from sapwood_engine.models.compiled_memory import StepMemory

LOG2_E = math.log2(math.e)


@njit(parallel=True, **EXACT_OPTIONS)
def _attend(x_tag, kv_tag, num_threads, shape, work, num_units, next_unit, kv_indices, q, k, v, out, space, parts):  # type: ignore[no-untyped-def]
    for t in prange(num_threads):
        mine = of_thread(space, t)
        while True:
            u = add_atomically(next_unit, 1)
            if u >= num_units:
                break
            attend_unit(x_tag, kv_tag, shape, work.units[u], work, kv_indices, q, k, v, out, mine, parts)


class StepAttention:
    """`AttentionBackend`; its memory lasts from run to run, as that of a step does from layer to layer."""

    name = "step"

    def __init__(self, num_threads: int, *, divided_for: int | None = None) -> None:
        """``divided_for``: threads that the work is divided for, if not ``num_threads``."""
        self._num_threads = num_threads
        self._divided_for = divided_for or num_threads
        self._memories: dict[tuple[int, int, int], StepMemory] = {}
        self._metadata: AttentionMetadata
        self.most_members = 0
        """Sequences that had a part computed for all of them at once, the most of the last run"""

    def plan(self, metadata: AttentionMetadata) -> None:
        """Take over ``metadata``."""
        self._metadata = metadata

    def run(
        self, q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, *, scale: float, out: torch.Tensor
    ) -> torch.Tensor:
        """See `AttentionBackend.run`."""
        num_tokens, num_heads, dim = q.shape
        _, page_size, num_kv_heads, _ = k_pages.shape
        memory = self._memory(num_heads, num_kv_heads, dim)
        sizes = (page_size, num_heads // num_kv_heads, num_kv_heads)
        queries = scaled(q, scale).view(num_tokens, num_kv_heads, -1, dim).transpose(0, 1).contiguous()
        shape = AttentionShape(
            group=sizes[1],
            num_kv_heads=num_kv_heads,
            dim=dim,
            page_size=page_size,
            kv_slot=k_pages.stride(1) * k_pages.itemsize,
            kv_head=k_pages.stride(2) * k_pages.itemsize,
            q_head=queries.stride(0) * q.itemsize,
            out_token=out.stride(0) * out.itemsize,
        )
        num_units = self._divide(memory, sizes)
        memory.begin()
        _attend(
            TAGS[q.dtype], TAGS[k_pages.dtype], use_threads(self._num_threads), shape, memory.work, num_units,
            memory.buffers.next_unit, self._metadata.kv_indices.numpy(), queries.data_ptr(), k_pages.data_ptr(),
            v_pages.data_ptr(), out.data_ptr(), memory.space, memory.parts,
        )  # fmt: skip
        return out

    def _divide(self, memory: StepMemory, sizes: tuple[int, int, int]) -> int:
        metadata = self._metadata
        qo_indptr, kv_indptr = metadata.qo_indptr.numpy(), metadata.kv_indptr.numpy()
        kv_lens = (np.diff(kv_indptr).astype(np.int64) - 1) * sizes[0] + metadata.kv_last_page_len.numpy()
        most = units.most_units(qo_indptr, kv_indptr, *sizes)
        memory.make_room_for_units(most)
        kv_indices = metadata.kv_indices.numpy()
        counts = units.list_units(qo_indptr, kv_indptr, kv_lens, kv_indices, *sizes, self._divided_for, memory.work)
        num_units, num_joins, num_members, num_slots = counts.tolist()
        assert max(num_units, num_joins, num_members) <= most
        memory.make_room_for_parts(num_slots, num_joins)
        self.most_members = int(memory.work.units[:num_units, units.NUM_MEMBERS].max())
        return int(num_units)

    def _memory(self, num_heads: int, num_kv_heads: int, dim: int) -> StepMemory:
        key = (num_heads, num_kv_heads, dim)
        if key not in self._memories:
            # Attention looks at none of the sizes that are small here.
            model = ModelShape(
                hidden=4,
                hidden_width=PANEL,
                heads=num_heads,
                inner=LANES,
                qkv_width=PANEL,
                rotary_half=0,
                eps=0.0,
                scale=1.0,
                slope=1.0,
                cubic=0.0,
            )
            self._memories[key] = StepMemory(
                model,
                num_layers=1,
                num_kv_heads=num_kv_heads,
                dim=dim,
                activations=torch.float32,
                max_rows=1,
                num_threads=self._num_threads,
            )
        return self._memories[key]


def scaled(q: torch.Tensor, scale: float) -> torch.Tensor:
    """Queries as a step multiplies them: with log2(e) in them, so that scores are exponents of 2."""
    return (q.float() * (scale * LOG2_E)).to(q.dtype)
