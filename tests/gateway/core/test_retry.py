"""What is tried again, how often and how soon."""

from __future__ import annotations

import pytest

from sapwood_gateway.core.retry import GiveUp, RetrySettings, TryAgain, after, is_failure, is_retried

SETTINGS = RetrySettings(max_attempts=4, first_delay_seconds=0.1, longest_delay_seconds=0.3)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_answers_that_another_replica_may_better_are_tried_again(status: int) -> None:
    assert is_retried(status)


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 408, 409, 413, 422, 500, 501])
def test_no_other_answer_is(status: int) -> None:
    assert not is_retried(status)


@pytest.mark.parametrize(
    ("status", "counts"), [(200, False), (400, False), (422, False), (429, False), (500, True), (503, True)]
)
def test_what_a_client_did_wrong_and_a_full_queue_do_not_count_against_a_replica(status: int, counts: bool) -> None:
    assert is_failure(status) == counts


def test_attempts_are_bounded() -> None:
    assert isinstance(after(3, jitter=0.5, settings=SETTINGS), TryAgain)
    assert after(4, jitter=0.5, settings=SETTINGS) == GiveUp()
    assert after(1, jitter=0.5, settings=RetrySettings(max_attempts=1)) == GiveUp()


def test_delays_double_up_to_the_longest_and_are_spread_from_nothing_to_twice_the_mean() -> None:
    means = [after(number, jitter=0.5, settings=SETTINGS) for number in (1, 2, 3)]
    assert means == [TryAgain(0.1), TryAgain(0.2), TryAgain(0.3)]
    assert after(1, jitter=0.0, settings=SETTINGS) == TryAgain(0.0)
    assert after(1, jitter=0.75, settings=SETTINGS) == TryAgain(0.1 * 2 * 0.75)
