"""How prefills share a step: who gets how many tokens."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_engine.core.prefill_share import LEAST_CHUNK_TOKENS, Prefill, prefill_allowance, share_prefill
from sapwood_engine.core.step_cost import StepCosts, StepWork

CHUNK_TOKENS = 512


def share(left: list[int], *, seconds: float = math.inf, max_tokens: int = 2048) -> list[int]:
    """Share among prompts with so many tokens ``left`` on a machine where each takes a millisecond."""
    costs = StepCosts()
    costs.observe(StepWork(0, 0, 1000, 0), 1.0)
    prefills = [Prefill(0, num_left, min(num_left, CHUNK_TOKENS)) for num_left in left]
    return share_prefill(prefills, costs, max_tokens=max_tokens, seconds=seconds)


def test_without_a_limit_of_time_everybody_gets_a_chunk_while_step_tokens_last() -> None:
    assert share([4000, 100, 600, 4000], max_tokens=1200) == [512, 100, 512, 76]


def test_of_equals_one_is_done_before_the_next_begins() -> None:
    assert share([4000, 4000], seconds=0.2005) == [200, 0]


def test_who_is_the_nearest_to_its_first_token_comes_before_others_with_half_of_the_time() -> None:
    assert share([4000, 3000, 600], seconds=0.2005) == [100, 0, 100]
    assert share([4000, 3000, 60], seconds=0.2005) == [100, 40, 60]


def test_what_others_do_not_need_is_the_oldests() -> None:
    assert share([4000, 40], seconds=0.2005) == [160, 40]


@pytest.mark.parametrize("left", [[4000, 4000], [4000, 40]])
def test_the_oldest_goes_on_even_beyond_the_time_and_then_alone(left: list[int]) -> None:
    assert share(left, seconds=0.001) == [LEAST_CHUNK_TOKENS, 0]


def test_half_of_the_step_tokens_are_the_oldests_too() -> None:
    assert share([4000, 40, 40], max_tokens=20) == [10, 10, 0]


def test_who_sits_a_step_out_holds_up_nobody() -> None:
    costs = StepCosts()
    assert share_prefill([Prefill(0, 90, 0), Prefill(0, 90, 90)], costs, max_tokens=64, seconds=0.0) == [0, 64]


@given(
    prefills=st.lists(
        st.builds(
            lambda start, num_left, chunk: Prefill(start, num_left, min(num_left, chunk)),
            st.integers(0, 8000),
            st.integers(1, 4000),
            st.integers(0, 512),
        ),
        max_size=12,
    ),
    max_tokens=st.integers(1, 2048),
    seconds=st.floats(0, 3),
    key_seconds=st.floats(0, 1e-6),
)
def test_the_oldest_always_goes_on_and_the_others_keep_to_tokens_and_time(
    prefills: list[Prefill], max_tokens: int, seconds: float, key_seconds: float
) -> None:
    costs = StepCosts()
    for num_keys in (0, 100_000):
        costs.observe(StepWork(0, 0, 512, num_keys), 0.3 + num_keys * key_seconds)
    tokens = share_prefill(prefills, costs, max_tokens=max_tokens, seconds=seconds)
    taken = [costs.prefill_seconds(each.start, given) for each, given in zip(prefills, tokens, strict=True)]
    assert all(0 <= given <= each.chunk_tokens for each, given in zip(prefills, tokens, strict=True))
    assert sum(tokens) <= max_tokens
    oldest = next((index for index, each in enumerate(prefills) if each.chunk_tokens), None)
    if oldest is not None:
        others = sum(taken) - taken[oldest]
        assert others <= seconds + 1e-9
        assert sum(taken) <= seconds + 1e-9 or tokens[oldest] <= LEAST_CHUNK_TOKENS
        half = -(-max_tokens // 2)
        assert tokens[oldest] >= min(LEAST_CHUNK_TOKENS, prefills[oldest].chunk_tokens, half)


def test_prefills_have_what_decodes_leave_of_the_target_and_never_less_than_a_quarter_of_the_step() -> None:
    assert prefill_allowance(0.02, 0.1) == 0.08
    for decode_seconds in (0.09, 0.5):
        allowance = prefill_allowance(decode_seconds, 0.1)
        assert math.isclose(allowance / (allowance + decode_seconds), 0.25)
