"""When a replica rests, and how it is tried again."""

from __future__ import annotations

from sapwood_gateway.core.circuit import (
    Circuit,
    CircuitSettings,
    Closed,
    HalfOpen,
    Open,
    after_abandoned,
    after_begin,
    after_failure,
    after_success,
    lets_through,
)

SETTINGS = CircuitSettings(failures_to_open=3, rest_seconds=1.0, longest_rest_seconds=5.0)


def failed(circuit: Circuit, *times: float) -> Circuit:
    for now in times:
        circuit = after_failure(circuit, now, SETTINGS)
    return circuit


def test_it_opens_after_three_failures_in_a_row() -> None:
    assert lets_through(failed(Closed(), 0.0, 0.1), 0.2)
    assert failed(Closed(), 0.0, 0.1, 0.2) == Open(1.2, 1)


def test_a_success_in_between_begins_the_count_anew() -> None:
    assert failed(after_success(failed(Closed(), 0.0, 0.1)), 0.2, 0.3) == Closed(2)


def test_an_open_one_lets_nothing_through_until_it_has_rested_and_then_one_request() -> None:
    rested = Open(until=5.0, num_rests=1)
    assert not lets_through(rested, 4.9)
    assert lets_through(rested, 5.0)
    assert not lets_through(after_begin(rested), 6.0)


def test_a_trial_that_succeeds_closes_it() -> None:
    assert after_success(HalfOpen(3)) == Closed(0)


def test_each_failed_trial_doubles_the_rest_up_to_the_longest() -> None:
    rests = []
    circuit: Circuit = Open(0.0, 1)
    for _ in range(4):
        circuit = failed(after_begin(circuit), 0.0)
        assert isinstance(circuit, Open)
        rests.append(circuit.until)
    assert rests == [2.0, 4.0, 5.0, 5.0]


def test_a_trial_that_nothing_was_heard_of_leaves_the_next_request_to_try() -> None:
    assert lets_through(after_abandoned(HalfOpen(2), 7.0), 7.0)


def test_failures_of_requests_from_before_it_opened_do_not_extend_the_rest() -> None:
    assert failed(Open(9.0, 1), 8.0) == Open(9.0, 1)


def test_an_abandoned_request_changes_nothing_else() -> None:
    assert after_abandoned(Closed(2), 1.0) == Closed(2)
    assert after_abandoned(Open(9.0, 1), 1.0) == Open(9.0, 1)
    assert after_begin(Closed(1)) == Closed(1)
