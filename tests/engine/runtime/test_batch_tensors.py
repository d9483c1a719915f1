from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_torch_executor import capacity

from sapwood_engine.core.step import PENDING_TOKEN, PageUpdate, StepPlan
from sapwood_engine.runtime.batch_tensors import BatchTensors

LIMITS = capacity(page_size=4, max_seats=6, max_step_tokens=64, context=32)


def plan(seats: list[int], starts: list[int], lengths: list[int], tokens: list[int], samples: list[bool]) -> StepPlan:
    return StepPlan(0, "mixed", seats, starts, lengths, tokens, samples)


@st.composite
def rows(draw: st.DrawFn) -> tuple[StepPlan, dict[int, list[int]]]:
    """A plan, and the page table of each of its seats."""
    seats = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True))
    starts = [draw(st.integers(0, 21)) for _ in seats]
    lengths = [draw(st.integers(1, 10)) for _ in seats]
    tokens = [draw(st.integers(0, 199)) for length in lengths for _ in range(length)]
    tables = {seat: draw(st.lists(st.integers(0, 63), min_size=8, max_size=8)) for seat in seats}
    return plan(seats, starts, lengths, tokens, [draw(st.booleans()) for _ in seats]), tables


@given(rows())
def test_tensors_say_what_the_columns_say(case: tuple[StepPlan, dict[int, list[int]]]) -> None:
    step, tables = case
    tensors = BatchTensors(LIMITS)
    tensors.update_pages([PageUpdate(seat, 0, tuple(pages)) for seat, pages in tables.items()])
    built = tensors.build(step, np.zeros(6, np.int64))
    positions: list[int] = []
    slots: list[int] = []
    ends: list[int] = []
    for seat, start, length in zip(step.seats, step.starts, step.lengths, strict=True):
        positions += range(start, start + length)
        slots += [tables[seat][p // 4] * 4 + p % 4 for p in range(start, start + length)]
        ends.append(len(positions))
    assert built.token_ids.tolist() == step.token_ids
    assert built.positions.tolist() == positions
    assert built.slots.tolist() == slots
    assert built.logits_rows.tolist() == [e - 1 for e, s in zip(ends, step.samples, strict=True) if s]
    meta = built.metadata
    assert meta.qo_indptr.tolist() == [0, *ends]
    kv_indptr = meta.kv_indptr.tolist()
    for row, (seat, start, length) in enumerate(zip(step.seats, step.starts, step.lengths, strict=True)):
        pages = meta.kv_indices[kv_indptr[row] : kv_indptr[row + 1]].tolist()
        assert pages == tables[seat][: len(pages)]
        assert (len(pages) - 1) * 4 + int(meta.kv_last_page_len[row]) == start + length
    assert meta.max_qo_len == max(step.lengths)


def test_a_pending_token_is_the_seats_last_one() -> None:
    tensors = BatchTensors(LIMITS)
    tensors.update_pages([PageUpdate(1, 0, (5,)), PageUpdate(4, 0, (6,))])
    last = np.array([0, 71, 0, 0, 74, 0])
    step = plan([4, 1], [2, 1], [1, 2], [PENDING_TOKEN, 9, PENDING_TOKEN], [True, True])
    assert tensors.build(step, last).token_ids.tolist() == [74, 9, 71]


def test_prompt_targets_follow_the_sampled_rows() -> None:
    tensors = BatchTensors(LIMITS)
    tensors.update_pages([PageUpdate(seat, 0, (seat, seat + 10)) for seat in range(3)])
    step = plan([0, 1, 2], [0, 0, 3], [3, 4, 1], list(range(8)), [True, False, True])
    step.prompt_targets = {0: (1, 2), 1: (4, 5, 6, 7)}
    assert tensors.build(step, np.zeros(6, np.int64)).logits_rows.tolist() == [2, 7, 0, 1, 3, 4, 5, 6]


def test_an_opened_seat_has_forgotten_its_pages() -> None:
    tensors = BatchTensors(LIMITS)
    tensors.update_pages([PageUpdate(0, 0, (1, 2))])
    tensors.open(0)
    with pytest.raises(AssertionError, match="no page"):
        tensors.build(plan([0], [0], [1], [3], [True]), np.zeros(6, np.int64))


def test_steps_write_into_the_same_memory() -> None:
    tensors = BatchTensors(LIMITS)
    tensors.update_pages([PageUpdate(0, 0, tuple(range(8)))])

    def addresses(start: int) -> list[int]:
        built = tensors.build(plan([0], [start], [1], [3], [True]), np.zeros(6, np.int64))
        meta = built.metadata
        parts = (built.token_ids, built.positions, built.slots, built.logits_rows)
        return [t.data_ptr() for t in (*parts, meta.qo_indptr, meta.kv_indptr, meta.kv_indices)]

    assert addresses(0) == addresses(31)
