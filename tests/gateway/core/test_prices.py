"""What a request counts for before it is computed."""

from __future__ import annotations

import pytest

from sapwood_gateway.core.prices import DEFAULT_ANSWER_TOKENS, MOST_TOKENS, answer_limit, price_of


def test_a_prompt_that_was_read_counts_its_tokens_and_the_longest_answer() -> None:
    assert price_of(4_000, num_prompt_tokens=900, max_answer_tokens=100) == 1_000


def test_a_prompt_that_was_not_read_counts_a_token_for_four_bytes_of_body() -> None:
    assert price_of(4_001, max_answer_tokens=100) == 1_101


def test_an_answer_without_a_limit_counts_as_a_usual_one() -> None:
    assert price_of(400) == 100 + DEFAULT_ANSWER_TOKENS


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 5, "max_tokens": 7}, 5),
        ({"max_tokens": 7, "n": 3}, 21),
        ({"max_tokens": 10**30}, MOST_TOKENS),
        ({"max_tokens": 0}, 0),
        ({}, None),
        ({"n": 3}, 3 * DEFAULT_ANSWER_TOKENS),
        # What an engine refuses is priced as if it was not there.
        ({"max_tokens": -1}, None),
        ({"max_tokens": "7", "n": [2]}, None),
        ({"max_tokens": True, "n": False}, None),
    ],
)
def test_the_longest_answer_is_what_the_body_allows_for_all_its_choices(
    body: dict[str, object], limit: int | None
) -> None:
    expected = DEFAULT_ANSWER_TOKENS if limit is None else limit
    assert answer_limit(body.get("max_completion_tokens"), body.get("max_tokens"), body.get("n")) == expected


def test_each_of_several_prompts_has_its_answer() -> None:
    assert answer_limit(None, 7, 3, num_prompts=100) == 2_100
    assert answer_limit(None, 10**8, None, num_prompts=100) == MOST_TOKENS


def test_no_price_is_so_high_that_it_cannot_be_counted_or_nothing() -> None:
    assert price_of(10**20, max_answer_tokens=MOST_TOKENS) == MOST_TOKENS
    assert price_of(0, num_prompt_tokens=0, max_answer_tokens=0) == 1
