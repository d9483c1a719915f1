"""The work queue: one turn at a time a key, bursts become one turn, failures come back later and later."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sapwood_operator.handlers.work_queue import Pace, Take, WaitUntil, WorkQueue

PACE = Pace(rest_seconds=1.0, first_retry_seconds=2.0, last_retry_seconds=16.0)


def a_queue(uniform: float = 0.0) -> WorkQueue[str]:
    return WorkQueue(PACE, lambda: uniform)


def test_a_woken_key_is_due_at_once_and_the_longest_waiting_comes_first() -> None:
    queue = a_queue()
    queue.wake("b", 1.0)
    queue.wake("a", 2.0)
    assert [queue.take(3.0), queue.take(3.0), queue.take(3.0)] == [Take("b"), Take("a"), WaitUntil(math.inf)]


def test_a_burst_of_wakes_is_one_turn() -> None:
    queue = a_queue()
    for time in (0.0, 0.1, 0.2):
        queue.wake("a", time)
    assert queue.take(1.0) == Take("a")
    assert queue.take(1.0) == WaitUntil(math.inf)


def test_a_key_that_has_a_turn_gets_no_second_one_beside_it() -> None:
    queue = a_queue()
    queue.wake("a", 0.0)
    queue.take(0.0)
    queue.wake("a", 0.1)
    assert queue.take(5.0) == WaitUntil(math.inf)


def test_a_wake_during_a_turn_brings_another_turn_after_a_rest() -> None:
    queue = a_queue()
    queue.wake("a", 0.0)
    queue.take(0.0)
    queue.wake("a", 0.1)
    queue.done("a", 3.0, again_after_seconds=math.inf)
    assert queue.take(3.0) == WaitUntil(4.0)
    assert queue.take(4.0) == Take("a")


def test_a_wake_right_after_a_turn_waits_until_the_key_has_rested() -> None:
    queue = a_queue()
    queue.wake("a", 0.0)
    queue.take(0.0)
    queue.done("a", 3.0, again_after_seconds=math.inf)
    queue.wake("a", 3.2)
    assert queue.take(3.2) == WaitUntil(4.0)


def test_a_timer_brings_a_turn_and_a_wake_does_not_put_it_off() -> None:
    queue = a_queue()
    queue.wake("a", 0.0)
    queue.take(0.0)
    queue.done("a", 0.0, again_after_seconds=10.0)
    assert queue.take(5.0) == WaitUntil(10.0)
    queue.wake("a", 6.0)
    assert queue.take(6.0) == Take("a")


def test_a_turn_that_went_well_leaves_nothing_to_do() -> None:
    queue = a_queue()
    queue.wake("a", 0.0)
    queue.take(0.0)
    queue.done("a", 0.0, again_after_seconds=math.inf)
    assert queue.take(1e9) == WaitUntil(math.inf)


def test_failures_in_a_row_double_the_delay_up_to_the_longest() -> None:
    queue, delays, now = a_queue(uniform=1.0), [], 0.0
    queue.wake("a", now)
    for _ in range(5):
        assert queue.take(now) == Take("a")
        delay = queue.failed("a", now)
        delays.append(delay)
        now += delay
    assert delays == [2.0, 4.0, 8.0, 16.0, 16.0]


@pytest.mark.parametrize(("uniform", "delay"), [(0.0, 1.0), (0.5, 1.5)])
def test_a_delay_is_drawn_from_its_upper_half(uniform: float, delay: float) -> None:
    queue = a_queue(uniform)
    queue.wake("a", 0.0)
    queue.take(0.0)
    assert queue.failed("a", 0.0) == delay


def test_a_turn_that_went_well_forgets_earlier_failures() -> None:
    queue = a_queue(uniform=1.0)
    queue.wake("a", 0.0)
    for now in (0.0, 2.0):
        queue.take(now)
        queue.failed("a", now)
    queue.take(6.0)
    queue.done("a", 6.0, again_after_seconds=0.0)
    queue.take(7.0)
    assert queue.failed("a", 7.0) == 2.0


def test_the_servers_own_delay_is_kept_to() -> None:
    queue = a_queue()
    queue.wake("a", 0.0)
    queue.take(0.0)
    assert queue.failed("a", 0.0, not_before_seconds=30.0) == 30.0


def test_a_wake_does_not_wait_for_a_retry() -> None:
    queue = a_queue(uniform=1.0)
    queue.wake("a", 0.0)
    queue.take(0.0)
    queue.failed("a", 0.0, not_before_seconds=100.0)
    queue.wake("a", 1.5)
    assert queue.take(1.5) == Take("a")


def test_a_key_that_is_forgotten_has_no_timer_left() -> None:
    queue = a_queue()
    queue.wake("a", 0.0)
    queue.take(0.0)
    queue.forget("a", 0.0)
    assert queue.take(1e9) == WaitUntil(math.inf)


def test_a_key_that_was_woken_while_it_was_forgotten_has_its_turn() -> None:
    queue = a_queue()
    queue.wake("a", 0.0)
    queue.take(0.0)
    queue.wake("a", 0.5)
    queue.forget("a", 1.0)
    assert queue.take(1.0) == Take("a")


def test_keys_that_wait_for_a_timer_are_not_counted_as_waiting_for_a_turn() -> None:
    queue = a_queue()
    for key in "ab":
        queue.wake(key, 0.0)
    queue.take(0.0)
    queue.done("a", 0.0, again_after_seconds=50.0)
    assert [queue.num_due(0.0), queue.num_due(50.0)] == [1, 2]


@dataclass
class NaiveKey:
    """When a key is due, by the rules as they are told; infinite: not."""

    due: float = math.inf
    rested: float = 0.0
    taken: bool = False
    woken: bool = False
    failures: int = 0


@dataclass
class Naive:
    keys: dict[str, NaiveKey] = field(default_factory=lambda: {key: NaiveKey() for key in "abc"})


KEYS = st.sampled_from("abc")


class QueueAgainstNaiveModel(RuleBasedStateMachine):
    """The heap against a table that is searched whole."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WorkQueue[str](PACE, lambda: 1.0)
        self.model = Naive().keys
        self.now = 0.0

    @rule(seconds=st.sampled_from([0.0, 0.25, 1.0, 3.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(key=KEYS)
    def wake(self, key: str) -> None:
        self.queue.wake(key, self.now)
        known = self.model[key]
        if known.taken:
            known.woken = True
        else:
            known.due = min(known.due, max(self.now, known.rested))

    @rule()
    def take(self) -> None:
        decision = self.queue.take(self.now)
        earliest = min(known.due for known in self.model.values())
        if earliest > self.now:
            assert decision == WaitUntil(earliest)
            return
        assert isinstance(decision, Take)
        known = self.model[decision.key]
        assert known.due == earliest
        assert not known.taken
        known.due, known.taken = math.inf, True

    @precondition(lambda self: any(known.taken for known in self.model.values()))
    @rule(data=st.data(), ending=st.sampled_from(["done", "timer", "failed", "forget"]))
    def end(self, data: st.DataObject, ending: str) -> None:
        key = data.draw(st.sampled_from([key for key, known in self.model.items() if known.taken]))
        known = self.model[key]
        known.taken = False
        known.failures = known.failures + 1 if ending == "failed" else 0
        match ending:
            case "forget":
                self.queue.forget(key, self.now)
                known.rested = self.now
                next_due = math.inf
            case "failed":
                next_due = self.now + self.queue.failed(key, self.now)
                assert next_due - self.now == pytest.approx(min(2.0**known.failures, 16.0))
            case _:
                seconds = 5.0 if ending == "timer" else math.inf
                self.queue.done(key, self.now, again_after_seconds=seconds)
                next_due = self.now + seconds
        if ending != "forget":
            known.rested = self.now + PACE.rest_seconds
        if known.woken:
            next_due, known.woken = min(next_due, known.rested), False
        known.due = max(next_due, known.rested)

    @invariant()
    def as_many_are_due_as_in_the_model(self) -> None:
        assert self.queue.num_due(self.now) == sum(known.due <= self.now for known in self.model.values())


TestQueueAgainstNaiveModel = QueueAgainstNaiveModel.TestCase
