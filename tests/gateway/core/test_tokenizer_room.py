"""The many tokenizers of one service never take the place of another's few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_gateway.core.reading_turns import ServedModel
from sapwood_gateway.core.routes import ServiceKey
from sapwood_gateway.core.tokenizer_room import held_by_service, leaving

A1, A2, A3 = (ServedModel(ServiceKey("team", "a"), revision) for revision in "123")
B1, B2 = (ServedModel(ServiceKey("team", "b"), revision) for revision in "12")


@pytest.mark.parametrize(
    ("sizes", "newcomer", "expected"),
    [
        ({A1: 4, A2: 5, B1: 1}, B1, set()),
        ({A1: 4, A2: 6, B1: 1}, B1, {A2}),
        ({A1: 4, A2: 6, B1: 1}, A1, {A1}),
        ({A1: 3, A2: 3, A3: 3, B1: 5}, B1, {A1, A2}),
        ({A1: 8, B1: 8}, A1, {A1}),
        ({A1: 8, B1: 8}, B1, {B1}),
        ({A1: 6, B1: 2, B2: 5}, B2, {B2}),
        ({A1: 11}, A1, {A1}),
    ],
    ids=["room", "largest of most", "newcomer of most", "several", "equal a", "equal b", "several of few", "alone"],
)
def test_who_has_most_leaves_and_the_newcomer_where_it_is_of_them(
    sizes: dict[ServedModel, int], newcomer: ServedModel, expected: set[ServedModel]
) -> None:
    assert leaving(sizes, newcomer, 10) == expected


@given(st.dictionaries(st.sampled_from([A1, A2, A3, B1, B2]), st.integers(0, 9), min_size=1), st.data())
def test_what_stays_fits_and_no_service_loses_anything_to_one_that_keeps_more(
    sizes: dict[ServedModel, int], data: st.DataObject
) -> None:
    newcomer = data.draw(st.sampled_from(sorted(sizes)))
    before = {model: size for model, size in sizes.items() if model != newcomer}
    gone = leaving(sizes, newcomer, max(10, sum(before.values())))
    staying = {model: size for model, size in sizes.items() if model not in gone}
    assert sum(staying.values()) <= max(10, sum(before.values()))
    losers = {model.service for model in gone - {newcomer}}
    assert all(held_by_service(sizes)[each] > held_by_service(staying)[newcomer.service] for each in losers)
