"""The election: never two leaders at once, and a dead one is followed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sapwood_operator.adapters.election import Candidate, Create, LeaveAlone, NoLease, SeenLease, Take, Terms

TERMS = Terms(duration_seconds=15)


def held_by(holder: str, version: str = "1") -> SeenLease:
    return SeenLease(holder, 15.0, version)


def test_where_there_is_no_lease_it_is_created() -> None:
    assert Candidate("a").decide(NoLease(), 0.0) == Create()


def test_a_lease_that_was_released_is_taken_at_once() -> None:
    assert Candidate("a").decide(held_by(""), 0.0) == Take("1")


def test_ones_own_lease_is_renewed_even_after_a_restart_under_the_same_name() -> None:
    assert Candidate("a").decide(held_by("a"), 0.0) == Take("1")


def test_a_lease_that_was_just_seen_for_the_first_time_is_left_alone_however_old_it_says_it_is() -> None:
    assert Candidate("a").decide(held_by("b"), 1000.0) == LeaveAlone("b")


def test_a_lease_that_changes_is_left_alone_for_ever() -> None:
    candidate = Candidate("a")
    decisions = [candidate.decide(held_by("b", str(now)), float(now)) for now in range(0, 100, 10)]
    assert set(decisions) == {LeaveAlone("b")}


@pytest.mark.parametrize(("now", "decision"), [(14.9, LeaveAlone("b")), (15.0, Take("1"))])
def test_a_lease_that_nobody_renewed_for_its_whole_duration_is_taken(now: float, decision: Take | LeaveAlone) -> None:
    candidate = Candidate("a")
    candidate.decide(held_by("b"), 0.0)
    assert candidate.decide(held_by("b"), now) == decision


def test_a_holder_gives_up_before_others_take_over() -> None:
    assert TERMS.retry_seconds < TERMS.renew_within_seconds < TERMS.duration_seconds


@dataclass
class Process:
    """A candidate as the shell runs it: a read, later a write, each of which may hang or fail."""

    name: str
    candidate: Candidate = field(init=False)
    renewed_at: float = float("-inf")
    intent: Create | Take | None = None
    intent_since: float = 0.0

    def __post_init__(self) -> None:
        self.candidate = Candidate(self.name)

    def believes_to_lead(self, now: float) -> bool:
        return now < self.renewed_at + TERMS.renew_within_seconds


NAMES = st.sampled_from("abc")


class ElectionAmongThree(RuleBasedStateMachine):
    """Three candidates and one Lease with optimistic concurrency; steps come in any order, with any delay."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.lease: SeenLease | NoLease = NoLease()
        self.num_writes = 0
        self.processes = {name: Process(name) for name in "abc"}

    @rule(seconds=st.sampled_from([0.5, 2.0, 9.0, 16.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=NAMES)
    def read_and_decide(self, name: str) -> None:
        process = self.processes[name]
        decision = process.candidate.decide(self.lease, self.now)
        process.intent = None if isinstance(decision, LeaveAlone) else decision
        process.intent_since = self.now

    @rule(name=NAMES, answered=st.booleans())
    def write(self, name: str, answered: bool) -> None:
        process = self.processes[name]
        intent, process.intent = process.intent, None
        if intent is None:
            return
        expected = NoLease() if isinstance(intent, Create) else intent.version
        found = self.lease.version if isinstance(self.lease, SeenLease) else self.lease
        if expected != found:
            return
        self.num_writes += 1
        self.lease = SeenLease(process.name, float(TERMS.duration_seconds), str(self.num_writes))
        if answered:
            process.renewed_at = process.intent_since

    @rule(name=NAMES)
    def die_and_come_back_under_another_name(self, name: str) -> None:
        self.processes[name] = Process(f"{self.processes[name].name}'")

    @invariant()
    def at_most_one_leads(self) -> None:
        assert sum(process.believes_to_lead(self.now) for process in self.processes.values()) <= 1


TestElectionAmongThree = ElectionAmongThree.TestCase
