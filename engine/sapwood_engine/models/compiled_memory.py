"""The memory of the compiled step: made once for the largest step, so that a step allocates nothing that grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sapwood_engine.kernels.cpu_step import attention, step, units
from sapwood_engine.kernels.cpu_step.layout import PANEL, padded


class StepMemory:
    """Tensors of all phases, and the addresses of them that the step wants."""

    def __init__(
        self,
        model: step.ModelShape,
        *,
        num_layers: int,
        num_kv_heads: int,
        dim: int,
        activations: torch.dtype,
        max_rows: int,
        num_threads: int,
    ) -> None:
        """``max_rows``: most tokens of a step."""
        own_rows = num_threads * step.OWN_NORM_ROWS
        query_size = model.heads * dim
        deepest = max(model.hidden, query_size, model.inner)
        self._tensors = {
            "x": torch.zeros(max_rows, model.hidden_width),
            "normed": torch.zeros(own_rows + max_rows, model.hidden_width, dtype=activations),
            "qkv": torch.zeros(max_rows, model.qkv_width),
            "queries": torch.zeros(max_rows, query_size, dtype=activations),
            "attended": torch.zeros(max_rows, query_size, dtype=activations),
            "gated": torch.zeros(max_rows, model.inner, dtype=activations),
            "panel": torch.zeros(num_threads, step.ROWS_AT_ONCE, PANEL),
            "wide": torch.zeros(num_threads, deepest, PANEL, dtype=activations),
            "barrier": torch.zeros(3, dtype=torch.int64),
            "next_unit": torch.zeros(num_layers, dtype=torch.int64),
        }
        addresses = {name: tensor.data_ptr() for name, tensor in self._tensors.items()}
        self.buffers = step.Buffers(**addresses, wide_bytes=self._tensors["wide"][0].nbytes)
        self.space = _workspace(model.heads // num_kv_heads, dim, num_threads)
        self.work = _make_work(64)
        self.parts = self._make_parts(0, 0, dim)
        self._dim = dim

    @property
    def slept_seconds(self) -> float:
        """How long threads slept at the barriers of the last step, all together."""
        return int(self._tensors["barrier"][-1]) * 1e-9

    def begin(self) -> None:
        """Set the counters of a step back."""
        self._tensors["barrier"].zero_()
        self._tensors["next_unit"].zero_()

    def make_room_for_units(self, most: int) -> None:
        """Have room for this many units; what was there is lost."""
        if most > len(self.work.units):
            self.work = _make_work(2 * most)

    def make_room_for_parts(self, num_slots: int, num_joins: int) -> None:
        """Have room for what the parts of a step leave."""
        if num_slots > len(self.parts.maxima) or num_joins > len(self.parts.finished):
            self.parts = self._make_parts(2 * num_slots, 2 * num_joins, self._dim)

    @staticmethod
    def _make_parts(num_slots: int, num_joins: int, dim: int) -> attention.Parts:
        return attention.Parts(
            values=_floats(num_slots, padded(dim, PANEL)),
            maxima=_floats(num_slots),
            sums=_floats(num_slots),
            finished=np.zeros(num_joins, np.int64),
        )


def _make_work(most: int) -> attention.Work:
    return attention.Work(
        units=np.zeros((most, units.UNIT_FIELDS), np.int64),
        joins=np.zeros((most, units.JOIN_FIELDS), np.int64),
        members=np.zeros(most, np.int64),
    )


def _workspace(group: int, dim: int, num_threads: int) -> attention.Workspace:
    rows, block, width = max(units.UNIT_ROWS, group), attention.BLOCK, padded(dim, PANEL)
    return attention.Workspace(
        queries=_floats(num_threads, rows * dim),
        keys=_floats(num_threads, dim * block),
        values=_floats(num_threads, block * width),
        scores=_floats(num_threads, rows * block),
        weights=_floats(num_threads, rows * block),
        part=_floats(num_threads, rows * width),
        total=_floats(num_threads, rows * width),
        maxima=_floats(num_threads, 2, rows),
        sums=_floats(num_threads, 2, rows),
        rows=np.zeros((num_threads, units.PART_KEYS), np.int64),
    )


def _floats(*shape: int) -> Any:
    return np.zeros(shape, np.float32)
