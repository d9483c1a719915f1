"""From a plan's columns to the tensors of one step.

Keeps the page table of every seat, and writes each step into buffers made once: what a step allocates depends on the
rows and tokens of that step, never on how full the cache is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.step import PENDING_TOKEN, PageUpdate, StepPlan
from sapwood_engine.kernels.attention.base import AttentionMetadata

Ints = npt.NDArray[np.int32] | npt.NDArray[np.int64]

_NO_PAGE = -1


@dataclass(frozen=True, slots=True)
class StepTensors:
    """One step on the device; views of buffers that the next `BatchTensors.build` overwrites.

    ``logits_rows`` lists first the last token of each row that samples, in row order, then the tokens of
    ``prompt_rows``, row after row.
    """

    token_ids: torch.Tensor
    """int64 [num_tokens]"""
    positions: torch.Tensor
    """int64 [num_tokens]"""
    slots: torch.Tensor
    """int64 [num_tokens]"""
    logits_rows: torch.Tensor
    """int64 [num_logits]"""
    metadata: AttentionMetadata
    sampled_rows: list[int]
    """Rows that sample; their logits come first."""


class BatchTensors:
    """Page tables by seat and the buffers of a step."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._pages_per_seat = -(-capacity.max_context_tokens // capacity.page_size)
        self._page_tables = np.full((capacity.max_seats, self._pages_per_seat), _NO_PAGE, np.int32)
        seats, tokens = capacity.max_seats, capacity.max_step_tokens
        self._token_ids = np.zeros(tokens, np.int64)
        self._positions = np.zeros(tokens, np.int64)
        self._slots = np.zeros(tokens, np.int64)
        self._logits_rows = np.zeros(tokens + seats, np.int64)
        self._qo_indptr = np.zeros(seats + 1, np.int32)
        self._kv_indptr = np.zeros(seats + 1, np.int32)
        self._kv_indices = np.zeros(seats * self._pages_per_seat, np.int32)
        self._kv_last_page_len = np.zeros(seats, np.int32)

    def open(self, seat: int) -> None:
        """Forget the pages that ``seat`` held."""
        self._page_tables[seat] = _NO_PAGE

    def update_pages(self, updates: Sequence[PageUpdate]) -> None:
        """Write ``updates`` into the page tables."""
        for update in updates:
            self._page_tables[update.seat, update.first : update.first + len(update.pages)] = update.pages

    def build(self, plan: StepPlan, last_tokens: npt.NDArray[np.int64]) -> StepTensors:
        """Turn ``plan`` into tensors; a pending token is the seat's entry in ``last_tokens`` [max_seats].

        The result is valid until the next call. A plan outside the capacity, or that writes to a position without
        a page, is a fault of the planner: AssertionError.
        """
        ps = self._capacity.page_size
        seats, starts, lengths = (np.array(c, np.int64) for c in (plan.seats, plan.starts, plan.lengths))
        num_rows, num_tokens = len(seats), len(plan.token_ids)
        assert int(lengths.sum()) == num_tokens, f"{num_tokens} tokens for rows of {plan.lengths}"
        assert num_tokens <= self._capacity.max_step_tokens, f"{num_tokens} > {self._capacity.max_step_tokens} tokens"
        ends = np.cumsum(lengths)
        self._qo_indptr[1 : num_rows + 1] = ends
        token_seats = np.repeat(seats, lengths)
        positions = self._positions[:num_tokens]
        positions[:] = np.arange(num_tokens) + np.repeat(starts - (ends - lengths), lengths)
        token_ids = self._token_ids[:num_tokens]
        token_ids[:] = plan.token_ids
        np.copyto(token_ids, last_tokens[token_seats], where=token_ids == PENDING_TOKEN)
        pages = self._page_tables[token_seats, positions // ps]
        assert num_tokens == 0 or pages.min() >= 0, "a row reaches a position that has no page"
        slots = self._slots[:num_tokens]
        slots[:] = pages.astype(np.int64) * ps + positions % ps
        metadata = self._metadata(seats, starts + lengths, int(lengths.max(initial=0)))
        sampled_rows = [row for row, samples in enumerate(plan.samples) if samples]
        return StepTensors(
            token_ids=torch.from_numpy(token_ids),
            positions=torch.from_numpy(positions),
            slots=torch.from_numpy(slots),
            logits_rows=torch.from_numpy(self._place_logits(plan, sampled_rows, ends)),
            metadata=metadata,
            sampled_rows=sampled_rows,
        )

    def _metadata(
        self, seats: npt.NDArray[np.int64], kv_lens: npt.NDArray[np.int64], max_qo_len: int
    ) -> AttentionMetadata:
        ps, num_rows = self._capacity.page_size, len(seats)
        self._kv_last_page_len[:num_rows] = (kv_lens - 1) % ps + 1
        self._kv_indptr[1 : num_rows + 1] = np.cumsum(-(-kv_lens // ps))
        bounds = self._kv_indptr[: num_rows + 1].tolist()
        for row, seat in enumerate(seats.tolist()):
            begin, end = bounds[row], bounds[row + 1]
            self._kv_indices[begin:end] = self._page_tables[seat, : end - begin]
        return AttentionMetadata(
            qo_indptr=torch.from_numpy(self._qo_indptr[: num_rows + 1]),
            kv_indptr=torch.from_numpy(self._kv_indptr[: num_rows + 1]),
            kv_indices=torch.from_numpy(self._kv_indices[: bounds[-1]]),
            kv_last_page_len=torch.from_numpy(self._kv_last_page_len[:num_rows]),
            page_size=ps,
            max_qo_len=max_qo_len,
        )

    def _place_logits(
        self, plan: StepPlan, sampled_rows: list[int], ends: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        count = len(sampled_rows)
        self._logits_rows[:count] = ends[sampled_rows] - 1
        for row, targets in plan.prompt_targets.items():
            first = int(ends[row]) - plan.lengths[row]
            self._logits_rows[count : count + len(targets)] = np.arange(first, first + len(targets))
            count += len(targets)
        return self._logits_rows[:count]
