"""Which replica goes when there are to be fewer."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_contract.http import CachedNode, CachedNodes
from sapwood_operator.autoscaling.victims import (
    Cache,
    Candidate,
    NoCache,
    Progress,
    Standing,
    choose,
    losses,
    read_cache,
)


def a_cache(*nodes: tuple[Sequence[int], float], revision: str = "r1") -> Cache:
    """What holds these blocks, each node with its worth."""
    return Cache((revision, 16), tuple((array("Q", blocks), worth) for blocks, worth in nodes))


def ready(
    name: str,
    cache: Cache | None = None,
    work: float | None = 0.0,
    *,
    standing: Standing = "stays",
    created: float = 0.0,
) -> Candidate:
    """A replica that serves; without a cache it did not say what it holds."""
    return Candidate(
        name=name,
        progress="ready",
        standing=standing,
        created=created,
        cache=cache or NoCache("it did not answer"),
        work_tokens=work,
    )


def unready(name: str, progress: Progress = "running", created: float = 0.0) -> Candidate:
    return Candidate(name=name, progress=progress, created=created)


def names(candidates: Sequence[Candidate], count: int = 1) -> list[str]:
    return [choice.name for choice in choose(candidates, count)]


BUSY = ready("busy", a_cache(([1, 2], 50.0)), work=1000.0)
RICH = ready("rich", a_cache(([3, 4], 900.0)))
POOR = ready("poor", a_cache(([5], 40.0)))
COPY = ready("copy", a_cache(([3, 4], 900.0)))
SILENT = ready("silent")


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        pytest.param([RICH, POOR, BUSY], "poor", id="who holds and does least"),
        pytest.param([RICH, COPY, POOR], "copy", id="what another one holds too is worth nothing"),
        pytest.param([BUSY, RICH], "rich", id="work in flight counts as worth does"),
        pytest.param([SILENT, RICH], "rich", id="who did not say what it holds goes after those that did"),
        pytest.param([RICH, unready("loads")], "loads", id="who is not ready goes before all that are"),
        pytest.param(
            [unready("loads"), unready("is made", "waiting"), unready("has no node", "unplaced")],
            "has no node",
            id="of those that are not ready the one that is least far",
        ),
        pytest.param(
            [unready("older", created=1.0), unready("newer", created=2.0)], "newer", id="of equally far ones the newest"
        ),
        pytest.param(
            [POOR, ready("left", a_cache(([9], 5000.0)), standing="leaving")],
            "left",
            id="who is leaving goes on doing so",
        ),
        pytest.param(
            [ready("left", standing="leaving"), ready("marked", standing="goes_first")],
            "marked",
            id="a marked one first",
        ),
        pytest.param(
            [
                ready("holds most", a_cache(([9], 5000.0)), standing="leaving"),
                ready("holds less", a_cache(([8], 10.0)), standing="leaving"),
                POOR,
            ],
            "holds less",
            id="of two that leave the one stays that holds most",
        ),
        pytest.param([ready("b", a_cache()), ready("a", a_cache())], "a", id="of equals the first by name"),
        pytest.param(
            [ready("b", work=5.0), ready("a", work=9.0)],
            "b",
            id="where nobody says what it holds the least work decides",
        ),
        pytest.param(
            [ready("old", work=None, created=1.0), ready("new", work=None, created=2.0)],
            "new",
            id="where nothing is known the newest goes",
        ),
        pytest.param(
            [ready("a", a_cache(([3], 900.0)), work=None), POOR],
            "poor",
            id="who did not say what it has to do is unknown too",
        ),
        pytest.param(
            [ready("a", a_cache(([3], 900.0), revision="r1")), ready("b", a_cache(([3], 800.0), revision="r2"))],
            "b",
            id="blocks of another model revision are other blocks",
        ),
    ],
)
def test_the_replica_that_goes_is(candidates: Sequence[Candidate], expected: str) -> None:
    assert names(candidates) == names(list(reversed(candidates))) == [expected]


def test_of_two_that_hold_the_same_only_one_goes_for_nothing() -> None:
    assert names([RICH, COPY, POOR], 2) == ["copy", "poor"]


def test_as_many_go_as_there_are_at_most() -> None:
    assert sorted(names([RICH, POOR], 5)) == ["poor", "rich"]
    assert names([RICH, POOR], 0) == []


def test_the_choice_says_what_is_lost_and_what_the_next_one_would_lose() -> None:
    partly = ready("chat-x", a_cache(([1, 2, 3, 4], 12_400.0)), work=512.0)
    other = ready("chat-y", a_cache(([1, 2, 3], 1.0), ([7], 80_000.0)))
    (choice,) = choose([partly, other], 1)
    assert choice.message == (
        "chat-x goes: 12,400 tokens of worth, 3,100 of them nowhere else, and 512 in flight; chat-y would lose 80,000"
    )


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([unready("a")], "a goes: it is not ready"),
        ([unready("a", "waiting")], "a goes: it has not started yet"),
        ([unready("a", "unplaced")], "a goes: it has no node yet"),
        ([RICH], "rich goes: all that are ready go"),
        (
            [POOR, RICH, SILENT],
            "poor goes: 40 tokens of worth, 40 of them nowhere else; rich would lose 900; 1 did not say what it holds",
        ),
        (
            [SILENT, ready("x", work=7.0)],
            "silent goes: no replica said what its cache is worth, and it is the one with least in flight, 0 tokens",
        ),
        (
            [ready("x", work=None), ready("y", work=None, created=1.0)],
            "y goes: no replica said what its cache is worth, and it is the newest",
        ),
    ],
)
def test_every_choice_has_a_sentence(candidates: Sequence[Candidate], message: str) -> None:
    (choice,) = choose(candidates, 1)
    assert choice.message == message


def num_calls(candidates: Sequence[Candidate], count: int) -> int:
    """Return how many calls of Python functions it takes to choose; a generator's next value is one."""
    num = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal num
        num += event == "call"

    sys.setprofile(note)
    try:
        choose(candidates, count)
    finally:
        sys.setprofile(None)
    return num


def test_of_many_that_go_each_cache_is_looked_through_once() -> None:
    """A choice is made between two other things that the operator does, for all other services."""
    many = [ready(f"p{n:02}", a_cache(*(([n + block], 1.0) for block in range(200)))) for n in range(32)]
    assert num_calls(many, 16) < 2 * num_calls(many, 1)


def test_what_only_those_hold_that_go_is_lost_once() -> None:
    both = [ready("a", a_cache(([1], 10.0))), ready("b", a_cache(([1], 10.0), ([2], 5.0)))]
    lost = losses([POOR, SILENT], both)
    assert {name: (loss.worth_tokens, loss.nowhere_else_tokens) for name, loss in lost.items()} == {
        "a": (10.0, 10.0),
        "b": (15.0, 5.0),
    }


def test_a_silent_one_is_lost_with_nobody_knows_what() -> None:
    assert losses([POOR], [SILENT]) == {}


def told(*nodes: CachedNode) -> CachedNodes:
    return CachedNodes("r1", 16, nodes, is_whole=True)


def test_an_answer_is_read_block_by_block() -> None:
    blocks = base64.b64encode(array("Q", [7, 2**64 - 1]).tobytes()).decode()
    cache = read_cache(told(CachedNode(blocks, 32, 4.5), CachedNode("", 0, 0.0)))
    assert cache == a_cache(([7, 2**64 - 1], 4.5), ([], 0.0))


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        (CachedNode("no base64", 16, 1.0), "base64"),
        (CachedNode("AAAA", 16, 1.0), "3 bytes"),
        (CachedNode("", 0, float("nan")), "worth_tokens"),
        (CachedNode("", 0, float("inf")), "worth_tokens"),
        (CachedNode("", 0, -1.0), "worth_tokens"),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(node: CachedNode, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_cache(told(node))


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        name=st.sampled_from("abcdefgh"),
        progress=st.sampled_from(["unplaced", "waiting", "running", "ready", "ready", "ready"]),
        standing=st.sampled_from(["stays", "stays", "leaving", "goes_first"]),
        created=st.sampled_from([0.0, 1.0]),
        cache=st.one_of(
            st.just(NoCache("silent")),
            st.lists(
                st.tuples(st.lists(st.integers(0, 9), max_size=4), st.sampled_from([0.0, 1.0, 10.0])), max_size=3
            ).map(lambda nodes: a_cache(*nodes)),
        ),
        work_tokens=st.sampled_from([None, 0.0, 3.0]),
    ),
    unique_by=lambda candidate: candidate.name,
)


@given(CANDIDATES, st.integers(0, 9))
def test_the_choice_does_not_depend_on_the_order_and_takes_nobody_twice(
    candidates: list[Candidate], count: int
) -> None:
    chosen = names(candidates, count)
    assert chosen == names(candidates[::-1], count)
    assert len(chosen) == len(set(chosen)) == min(count, len(candidates))
    by_name = {candidate.name: candidate for candidate in candidates}
    rest = [by_name[name] for name in by_name.keys() - set(chosen)]
    if any(by_name[name].progress == "ready" for name in chosen):
        assert all(candidate.progress == "ready" for candidate in rest)
    if any(by_name[name].standing == "stays" and by_name[name].progress == "ready" for name in chosen):
        assert all(candidate.standing == "stays" for candidate in rest)
