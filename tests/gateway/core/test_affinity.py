"""What a prompt costs on each replica, and where it goes for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_gateway.core.affinity import (
    ANY_COPIES,
    NO_SHARES,
    Candidate,
    Decision,
    Reason,
    Weights,
    choose,
    placing_key,
)

PROMPT_TOKENS = 4_000
CACHE_TOKENS = 100_000.0
WEIGHTS = Weights()


def candidate(
    replica: str,
    matched: int = 0,
    *,
    requests: int = 0,
    waiting: int = 0,
    recent: float = 0.0,
    overload: float = WEIGHTS.overload_tokens,
) -> Candidate:
    return Candidate(replica, matched, requests, waiting, recent, overload)


def chosen(
    *candidates: Candidate,
    key: bytes = b"",
    session: str | None = None,
    copies: tuple[int, int] = ANY_COPIES,
    shares: Mapping[str, float] = NO_SHARES,
    weights: Weights = WEIGHTS,
) -> Decision:
    return choose(
        candidates,
        PROMPT_TOKENS,
        key=key,
        session_replica=session,
        mean_recent_tokens=fsum(each.recent_tokens for each in candidates) / len(candidates),
        cache_tokens=CACHE_TOKENS,
        copies=copies,
        shares=shares,
        weights=weights,
    )


@pytest.mark.parametrize(
    ("candidates", "replica", "reason"),
    [
        ([candidate("a"), candidate("b", 2_000)], "b", "prefix"),
        ([candidate("a", 1_000), candidate("b", 2_000)], "b", "prefix"),
        # A few requests, a short line or a little more work than others are no reason to compute a prefix again.
        ([candidate("a"), candidate("b", 100, requests=4, waiting=2_000, recent=3_000.0)], "b", "prefix"),
        # H07: a prompt that nobody holds goes to the light one, however much the other has cached.
        ([candidate("a", requests=50), candidate("b", recent=20_000.0)], "b", "least_load"),
        # H07: of several that hold it the light one.
        ([candidate("a", 2_000, requests=30), candidate("b", 2_000), candidate("c")], "b", "prefix"),
        # A holder with far too many requests, too long a line or too much of the work is spared.
        ([candidate("a"), candidate("b", 3_000, requests=30)], "a", "spill"),
        ([candidate("a"), candidate("b", 3_000, waiting=140_000)], "a", "spill"),
        ([candidate("a"), candidate("b", 3_000, recent=58_000.0)], "a", "spill"),
        # It is spared only where somebody else has less to do.
        ([candidate("a", requests=30), candidate("b", 3_000, requests=30)], "b", "prefix"),
        ([candidate("a", waiting=140_000), candidate("b", 3_000, waiting=140_000)], "b", "prefix"),
        # A second holder is better than none.
        ([candidate("a"), candidate("b", 3_000, requests=30), candidate("c", 2_500)], "c", "spill"),
        ([candidate("a", recent=10.0), candidate("b")], "b", "least_load"),
        # What is too long a line depends on how fast the replica is.
        ([candidate("a"), candidate("b", 3_000, waiting=140_000, overload=200_000)], "b", "prefix"),
        ([candidate("a"), candidate("b", 3_000, waiting=20_000)], "b", "prefix"),
        ([candidate("a"), candidate("b", 3_000, waiting=20_000, overload=10_000)], "a", "spill"),
    ],
)
def test_a_prompt_goes_where_it_costs_least(candidates: list[Candidate], replica: str, reason: Reason) -> None:
    decision = chosen(*candidates)
    assert (decision.replica, decision.reason) == (replica, reason)


A, B = candidate("a", recent=1_000.0), candidate("b")
HOLDER = candidate("h", 2_000, recent=2_000.0)
OTHER = candidate("o", 2_000, recent=2_000.0)
BUSY, OTHER_BUSY = (each._replace(num_requests=14) for each in (HOLDER, OTHER))
"""By 10 requests, or 2,560 tokens, beyond what is free."""


@pytest.mark.parametrize(
    ("candidates", "copies", "replica", "reason"),
    [
        # Too few have it: the one with least to do is to have it too.
        ([A, B, HOLDER], (2, 4), "b", "spill"),
        ([A, B, HOLDER, OTHER], (3, 4), "b", "spill"),
        ([A, B, HOLDER, OTHER], (2, 4), "h", "prefix"),
        ([A, B, HOLDER], (1, 4), "h", "prefix"),
        # All have it who can.
        ([HOLDER], (2, 4), "h", "prefix"),
        # Enough have it: a further one is worth it only where they have far too much to do.
        ([A, B, BUSY], (1, 2), "b", "spill"),
        ([A, B, BUSY], (1, 1), "h", "prefix"),
        ([A, B, BUSY, OTHER_BUSY], (1, 3), "b", "spill"),
        ([A, B, BUSY, OTHER_BUSY], (1, 2), "h", "prefix"),
        ([A, B, BUSY._replace(num_requests=24)], (1, 1), "b", "spill"),
        # Nobody has any of it: there is nothing to keep.
        ([A, B], (2, 4), "b", "least_load"),
        ([A, B], (1, 1), "b", "least_load"),
    ],
)
def test_a_beginning_is_kept_on_as_many_replicas_as_asked_for(
    candidates: list[Candidate], copies: tuple[int, int], replica: str, reason: Reason
) -> None:
    decision = chosen(*candidates, copies=copies)
    assert decision.reason == reason
    assert {decision.replica, replica} <= {"h", "o"} or decision.replica == replica


def test_a_decision_tells_what_it_expects_to_find() -> None:
    assert chosen(candidate("a"), candidate("b", 2_000)).matched_tokens == 2_000


@pytest.mark.parametrize(
    ("candidates", "replica", "reason"),
    [
        ([candidate("a"), candidate("b", recent=50.0)], "b", "sticky"),
        ([candidate("a", 500), candidate("b")], "b", "sticky"),
        ([candidate("a"), candidate("b", 500)], "b", "prefix"),
        # A preference, which a long prefix elsewhere or load overrules.
        ([candidate("a", 2_000), candidate("b")], "a", "prefix"),
        ([candidate("a"), candidate("b", requests=20)], "a", "least_load"),
        ([candidate("a")], "a", "least_load"),
    ],
)
def test_a_session_stays_where_it_was_unless_that_costs_more_than_it_is_worth(
    candidates: list[Candidate], replica: str, reason: Reason
) -> None:
    decision = chosen(*candidates, session="b")
    assert (decision.replica, decision.reason) == (replica, reason)


def test_what_nobody_holds_is_spread_by_its_key_as_long_as_all_are_about_as_busy() -> None:
    fleet = [candidate(name, recent=100.0 * number) for number, name in enumerate("abcd")]
    places = {key: chosen(*fleet, key=b"%d" % key).replica for key in range(100)}
    assert set(places.values()) == set("abcd")
    without_b = [each for each in fleet if each.replica != "b"]
    assert all(chosen(*without_b, key=b"%d" % key).replica == place for key, place in places.items() if place != "b")


def test_what_nobody_holds_goes_to_a_part_of_a_replica_as_its_share_and_only_ever_comes_to_it() -> None:
    fleet = [candidate(name) for name in "abcd"]
    before: dict[int, str] = {}
    for share in (0.1, 0.5, 1.0):
        places = {key: chosen(*fleet, key=b"%d" % key, shares={"b": share}).replica for key in range(3_000)}
        assert Counter(places.values())["b"] / 3_000 == pytest.approx(share / (3 + share), abs=0.02)
        assert all(places[key] in (was, "b") for key, was in before.items())
        before = places
    assert before == {key: chosen(*fleet, key=b"%d" % key).replica for key in range(3_000)}


def test_a_decision_tells_as_what_part_of_a_replica_the_chosen_one_counts() -> None:
    assert chosen(candidate("a"), candidate("b", 2_000), shares={"b": 0.5}).share == 0.5
    assert chosen(candidate("a", 2_000), candidate("b"), shares={"b": 0.5}).share == 1.0


def test_a_key_never_outweighs_load() -> None:
    fleet = [candidate("a", recent=10_000.0), candidate("b")]
    assert {chosen(*fleet, key=b"%d" % key).replica for key in range(100)} == {"b"}


def test_a_key_never_outweighs_a_prefix_however_short() -> None:
    fleet = [candidate("a", 1), candidate("b")]
    assert {chosen(*fleet, key=b"%d" % key).replica for key in range(100)} == {"a"}


def test_the_placing_key_is_the_first_block_that_tells_prompts_apart() -> None:
    system_prompt, one, other = b"system", b"one", b"other"
    assert placing_key([system_prompt, one], 1) != placing_key([system_prompt, other], 1)
    assert placing_key([system_prompt, one], 0) == placing_key([system_prompt, other], 0)
    assert placing_key([system_prompt, one], 2) == one
    assert placing_key([], 0) == b""


replicas = st.integers(1, 6).flatmap(
    lambda num: st.tuples(
        *(
            st.builds(
                Candidate,
                replica=st.just(f"replica-{number}"),
                matched_tokens=st.integers(0, PROMPT_TOKENS - 1),
                num_requests=st.integers(0, 60),
                waiting_tokens=st.integers(0, 200_000),
                recent_tokens=st.floats(0, 200_000),
                overload_tokens=st.floats(1_000, 200_000),
            )
            for number in range(num)
        )
    )
)
sessions = st.none() | st.sampled_from(["replica-0", "replica-1", "gone"])


def measure(each: Candidate, fleet: Sequence[Candidate], session: str | None, weights: Weights) -> float:
    """The measure of the module's docstring, word for word."""
    mean = fsum(other.recent_tokens for other in fleet) / len(fleet)
    waiting = each.waiting_tokens - min(other.waiting_tokens for other in fleet)
    requests = each.num_requests - min(other.num_requests for other in fleet)
    return (
        PROMPT_TOKENS
        - each.matched_tokens
        + weights.request_tokens * max(0, requests - weights.free_requests)
        + weights.waiting_weight * waiting
        + max(0, waiting - each.overload_tokens)
        + weights.recent_weight * (each.recent_tokens - mean)
        + max(0.0, each.recent_tokens - mean - weights.uneven_share * CACHE_TOKENS)
        - (weights.sticky_tokens if each.replica == session else 0)
    )


@given(replicas, st.binary(max_size=16), sessions)
def test_no_other_replica_costs_less_by_more_than_a_tie(
    fleet: tuple[Candidate, ...], key: bytes, session: str | None
) -> None:
    decision = chosen(*fleet, key=key, session=session)
    costs = {each.replica: measure(each, fleet, session, WEIGHTS) for each in fleet}
    assert decision.cost_tokens == pytest.approx(costs[decision.replica])
    assert decision.cost_tokens <= min(costs.values()) + WEIGHTS.tie_tokens + 1e-6
    without_ties = chosen(*fleet, key=key, session=session, weights=replace(WEIGHTS, tie_tokens=0))
    assert without_ties.cost_tokens == pytest.approx(min(costs.values()))


@given(replicas, st.binary(max_size=16), sessions)
def test_the_order_of_replicas_does_not_matter(fleet: tuple[Candidate, ...], key: bytes, session: str | None) -> None:
    assert chosen(*fleet, key=key, session=session) == chosen(*reversed(fleet), key=key, session=session)


@given(replicas, st.integers(0, 5))
def test_more_load_never_draws_a_prompt(fleet: tuple[Candidate, ...], number: int) -> None:
    before = chosen(*fleet)
    busier = [
        each._replace(num_requests=each.num_requests + 10, waiting_tokens=each.waiting_tokens + 1_000)
        if each.replica == f"replica-{number}"
        else each
        for each in fleet
    ]
    after = chosen(*busier)
    assert after.replica == before.replica or after.replica != f"replica-{number}"
