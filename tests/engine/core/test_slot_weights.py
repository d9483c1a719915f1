"""Sums of weights, against adding them up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sapwood_engine.core.slot_weights import SlotWeights

NUM_SLOTS = 13


@given(st.lists(st.tuples(st.integers(0, NUM_SLOTS - 1), st.integers(-50, 50))))
def test_the_weight_behind_a_slot_is_that_of_all_later_ones(changes: list[tuple[int, int]]) -> None:
    weights = SlotWeights(NUM_SLOTS)
    model = [0] * NUM_SLOTS
    for slot, weight in changes:
        weights.add(slot, weight)
        model[slot] += weight
    assert weights.total == sum(model)
    assert [weights.behind(slot) for slot in range(NUM_SLOTS)] == [sum(model[slot + 1 :]) for slot in range(NUM_SLOTS)]
