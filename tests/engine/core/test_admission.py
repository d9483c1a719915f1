"""Limits at the door, and how much of a prefix two prompts share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_fake_executor import capacity_for_tests
from support_scheduling import request

from sapwood_engine.core.admission import (
    Refused,
    SchedulerConfig,
    max_output,
    shared_whole_page_tokens,
    token_limit,
)
from sapwood_engine.core.keys import token_key


@pytest.mark.parametrize(("num_pages", "context", "limit"), [(8, 1000, 32), (8, 20, 20)])
def test_the_limit_of_a_request_is_the_context_or_the_pool_whichever_is_less(
    num_pages: int, context: int, limit: int
) -> None:
    capacity = capacity_for_tests(num_pages=num_pages, page_size=4, max_context_tokens=context)
    assert token_limit(capacity) == limit


def test_what_cannot_fit_beside_the_prompt_is_cut_from_the_output() -> None:
    capacity = capacity_for_tests(num_pages=8, page_size=4)
    assert max_output(request("a", range(30), max_tokens=100), capacity) == 2
    assert max_output(request("a", range(30), max_tokens=1), capacity) == 1


def test_an_empty_prompt_is_refused() -> None:
    outcome = max_output(request("a", []), capacity_for_tests())
    assert isinstance(outcome, Refused)
    assert outcome.reason == "never_fits"


@given(
    first=st.lists(st.integers(0, 2), max_size=20),
    second=st.lists(st.integers(0, 2), max_size=20),
    page_size=st.sampled_from([1, 2, 4]),
    limit=st.integers(0, 20),
)
def test_shared_tokens_are_whole_pages_of_the_common_beginning(
    first: list[int], second: list[int], page_size: int, limit: int
) -> None:
    common = 0
    while common < min(len(first), len(second), limit) and first[common] == second[common]:
        common += 1
    shared = shared_whole_page_tokens(
        token_key(first), token_key(second), unit_bytes=4, page_size=page_size, limit_tokens=limit
    )
    assert shared == common // page_size * page_size


@pytest.mark.parametrize(
    "field", ["max_running", "max_queued", "max_step_tokens", "chunk_tokens", "max_skips", "max_looks"]
)
def test_a_setting_below_one_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: 0 cannot be used"):
        SchedulerConfig(**{field: 0})  # type: ignore[arg-type]  # the point is a wrong value


@pytest.mark.parametrize("field", ["itl_target_seconds", "ttft_target_seconds"])
def test_a_target_of_zero_seconds_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        SchedulerConfig(**{field: 0.0})  # type: ignore[arg-type]  # one field a case
