"""The policy over many requests: what it remembers, and that it overloads nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from sapwood_contract import keys
from sapwood_contract.keys import TOKEN_BYTES
from sapwood_gateway.core.affinity import Decision, Weights
from sapwood_gateway.core.block_feed import Batch, BlockFeed, Stored
from sapwood_gateway.core.prefill_speed import TRUSTED_SAMPLES
from sapwood_gateway.core.prefix_affinity import Load, PrefixAffinity, Prompt
from sapwood_gateway.core.sessions import session_key

BLOCK_TOKENS = 16
CAPACITY_BLOCKS = 1_000


def policy(*names: str, events: bool = False) -> PrefixAffinity:
    made = PrefixAffinity(BLOCK_TOKENS)
    for name in names:
        made.join(name, CAPACITY_BLOCKS, publishes_events=events)
    return made


def prompt(*texts: str, blocks_each: int = 1, session: str | None = None) -> Prompt:
    """A prompt made of texts, each so many blocks, and half a block."""
    page_bytes = BLOCK_TOKENS * TOKEN_BYTES
    key = b"".join(f"{text} {number}".encode().ljust(page_bytes) for text in texts for number in range(blocks_each))
    chain = keys.chain(keys.namespace_root("model", None, None, None), key, page_bytes)
    return Prompt(len(chain) * BLOCK_TOKENS + BLOCK_TOKENS // 2, chain, session)


def idle(*names: str) -> list[Load]:
    return [Load(name, 0, 0) for name in names]


def send(made: PrefixAffinity, asked: Prompt, loads: Sequence[Load]) -> Decision:
    decision = made.decide(asked, loads)
    made.sent(asked, decision)
    return decision


@pytest.mark.parametrize("events", [True, False])
def test_from_its_second_turn_a_conversation_goes_where_its_beginning_is(events: bool) -> None:
    made = policy("a", "b", events=events)
    conversations: dict[str, list[str]] = {name: [name] for name in ("w", "x", "y", "z")}
    first = {name: send(made, prompt(*turns), idle("a", "b")).replica for name, turns in conversations.items()}
    assert set(first.values()) == {"a", "b"}
    for turn in range(5):
        for name, turns in conversations.items():
            expected = len(turns) * BLOCK_TOKENS
            turns.append(f"turn {turn}")
            decision = send(made, prompt(*turns), idle("a", "b"))
            assert (decision.replica, decision.reason) == (first[name], "prefix")
            assert decision.matched_tokens == expected


def test_of_a_prompt_that_is_held_whole_the_last_token_is_computed() -> None:
    made = policy("a")
    asked = Prompt(2 * BLOCK_TOKENS, prompt("x", "y").chain)
    send(made, asked, idle("a"))
    assert made.decide(asked, idle("a")).matched_tokens == 2 * BLOCK_TOKENS - 1


def test_deciding_changes_nothing() -> None:
    made = policy("a", "b")
    decisions = {made.decide(prompt("x"), idle("a", "b")) for _ in range(3)}
    assert len(decisions) == 1
    assert made.index.num_entries == 0


@pytest.mark.parametrize("num_replicas", [2, 8, 16])
def test_a_beginning_that_all_share_draws_them_to_nobody(num_replicas: int) -> None:
    names = [f"replica-{number}" for number in range(num_replicas)]
    made = policy(*names)
    system_prompt = [f"system {number}" for number in range(64)]
    placed: Counter[str] = Counter()
    for number in range(400 * num_replicas):
        # Every request is done before the next one comes: load alone would never move any.
        decision = send(made, prompt(*system_prompt, f"question {number}"), idle(*names))
        placed[decision.replica] += 1
        made.answered(decision.replica, 50)
    assert max(placed.values()) <= 1.5 * placed.total() / num_replicas


def test_a_prompt_that_many_send_at_once_is_computed_on_as_many_as_are_needed() -> None:
    names = ["a", "b", "c", "d"]
    made = policy(*names, events=True)
    requests = dict.fromkeys(names, 0)
    for number in range(200):
        asked = prompt("document", f"question {number}", blocks_each=100)
        decision = send(made, asked, [Load(name, requests[name], 0) for name in names])
        requests[decision.replica] += 1
    assert min(requests.values()) > 20
    assert max(requests.values()) - min(requests.values()) <= 4 + 3_232 / 256


def test_prompts_that_begin_alike_gather_while_the_first_is_still_computed() -> None:
    made = policy("a", "b", "c", events=True)
    placed = {send(made, prompt("document", f"q{number}"), idle("a", "b", "c")).replica for number in range(3)}
    assert len(placed) == 1


def test_what_was_under_way_and_never_told_of_is_forgotten() -> None:
    made = policy("a", "b", events=True)
    asked, other = prompt("x", "y"), prompt("x", "z")
    first, second = send(made, asked, idle("a")), send(made, other, idle("a"))
    made.computed(asked, first)
    assert made.decide(asked, idle("a")).matched_tokens == BLOCK_TOKENS  # as long as the other one is under way
    made.computed(other, second)
    assert made.decide(asked, idle("a")).matched_tokens == 0


def test_what_an_engine_tells_of_counts_beside_what_is_under_way() -> None:
    made = policy("a", "b", events=True)
    asked = prompt("x", "y")
    BlockFeed(made.index, "b").apply(Batch("first", 0, [Stored(tuple(asked.chain))]))
    send(made, prompt("x"), idle("a"))
    decision = made.decide(asked, idle("a", "b"))
    assert (decision.replica, decision.matched_tokens) == ("b", 2 * BLOCK_TOKENS)


def test_a_new_replica_is_not_given_everything_until_it_has_caught_up() -> None:
    made = policy("a", "b")
    for number in range(400):
        send(made, prompt(f"x{number}", blocks_each=4), idle("a", "b"))
    made.join("c", CAPACITY_BLOCKS, publishes_events=False)
    placed = Counter(
        send(made, prompt(f"y{number}", blocks_each=4), idle("a", "b", "c")).replica for number in range(300)
    )
    assert all(80 <= count <= 120 for count in placed.values())


def test_what_a_part_of_a_replica_is_given_counts_as_much_more() -> None:
    made = policy("a", "b", "new")
    shares = {"new": 0.25}
    placed: Counter[str] = Counter()
    for number in range(2_000):
        asked = prompt(f"x{number}", blocks_each=4)
        decision = made.decide(asked, idle("a", "b", "new"), shares=shares)
        made.sent(asked, decision)
        made.answered(decision.replica, 50 / decision.share)
        placed[decision.replica] += 1
    assert placed["new"] / placed.total() == pytest.approx(0.25 / 2.25, abs=0.02)
    # Nor does it have anything to catch up on when it counts in full.
    later = Counter(send(made, prompt(f"y{n}", blocks_each=4), idle("a", "b", "new")).replica for n in range(90))
    assert all(later[name] == pytest.approx(30, abs=12) for name in ("a", "b", "new"))


def test_a_replica_that_takes_prompts_again_is_not_given_all_until_it_has_caught_up() -> None:
    made = policy("a", "b", "rested")
    for number in range(400):
        send(made, prompt(f"x{number}", blocks_each=4), idle("a", "b"))
    made.level("rested")
    made.level("nobody")
    placed = Counter(
        send(made, prompt(f"y{number}", blocks_each=4), idle("a", "b", "rested")).replica for number in range(300)
    )
    assert all(80 <= count <= 120 for count in placed.values())


def test_what_a_replica_holds_that_cannot_take_the_prompt_draws_nothing() -> None:
    made = policy("a", "b", "c", "cordoned")
    send(made, prompt("system"), idle("cordoned"))
    # Nobody else holds the beginning: those that share it gather on one, as if nobody held it.
    placed = {made.decide(prompt("system", f"q{number}"), idle("a", "b", "c")).replica for number in range(20)}
    assert len(placed) == 1
    assert made.decide(prompt("system", "q"), idle("a", "b", "c")).matched_tokens == 0


def test_what_comes_in_for_a_replica_that_has_left_is_passed_over() -> None:
    made = policy("a", "b", events=True)
    asked = prompt("x")
    decision = send(made, asked, idle("a"))
    made.leave("a")
    made.computed(asked, decision)
    made.answered("a", 10)
    assert made.decide(asked, idle("b")).replica == "b"


@pytest.mark.parametrize("given", [None, "", "   ", 7, {"id": "x"}, [None]])
def test_what_is_no_session_ties_nobody_to_a_replica(given: object) -> None:  # H15
    made = policy("a", "b", "c", "d")
    session = session_key(given)
    placed = {
        send(made, prompt(f"x{number}", session=session), idle("a", "b", "c", "d")).replica for number in range(40)
    }
    assert session is None
    assert placed == {"a", "b", "c", "d"}


def test_a_session_returns_with_a_prompt_that_nobody_holds() -> None:
    made = policy("a", "b", "c", "d")
    session = session_key(" user-7 ")
    first = send(made, prompt("x", session=session), idle("a", "b", "c", "d"))
    later = [send(made, prompt(f"y{number}", session=session), idle("a", "b", "c", "d")) for number in range(10)]
    assert {(decision.replica, decision.reason) for decision in later} == {(first.replica, "sticky")}


def test_prompts_without_a_whole_block_are_spread() -> None:
    made = policy("a", "b", "c", "d")
    placed = Counter(send(made, Prompt(10, ()), idle("a", "b", "c", "d")).replica for _ in range(40))
    assert set(placed.values()) == {10}


LONG = [f"long {number}" for number in range(32)]
OVERLOAD_SECONDS = Weights().overload_seconds


def measured(made: PrefixAffinity, replica: str, tokens_per_second: float) -> None:
    """Let prompts that nobody else is in the way of be computed at a speed."""
    for number in range(TRUSTED_SAMPLES):
        asked = prompt(f"measured {number}", blocks_each=32)
        decision = Decision(replica, "least_load", 0, 0.0)
        made.began(asked, decision, asked.num_tokens / tokens_per_second)


@pytest.mark.parametrize(
    ("tokens_per_second", "waiting_seconds", "stays"),
    [(100.0, 0.5, True), (100.0, 15.0, True), (100.0, 60.0, False), (10_000.0, 2.0, True), (10_000.0, 60.0, False)],
)
def test_how_long_a_line_is_too_long_is_a_time_where_the_speed_is_known(
    tokens_per_second: float, waiting_seconds: float, stays: bool
) -> None:
    made = policy("a", "b")
    holder = send(made, prompt(*LONG), idle("a", "b")).replica
    measured(made, holder, tokens_per_second)
    waiting = int(waiting_seconds * tokens_per_second)
    loads = [Load(name, 0, waiting if name == holder else 0) for name in ("a", "b")]
    assert (made.decide(prompt(*LONG), loads).replica == holder) == stays


def test_a_speed_is_forgotten_with_its_replica() -> None:
    made = policy("a", "b")
    holder = send(made, prompt(*LONG), idle("a", "b")).replica
    measured(made, holder, 10.0)
    made.leave(holder)
    made.join(holder, CAPACITY_BLOCKS, publishes_events=False)
    made.index.store(holder, prompt(*LONG).chain)
    loads = [Load(name, 0, 10_000 if name == holder else 0) for name in ("a", "b")]
    assert made.decide(prompt(*LONG), loads).replica == holder


def holders_after(num_prompts: int, hot_replicas: tuple[int, int], *, num_busy: int = 0) -> int:
    """Return how many of 8 replicas hold a beginning that so many prompts share, as each is busy with ``num_busy``."""
    names = [f"replica-{number}" for number in range(8)]
    made = policy(*names)
    shared = prompt(*LONG).chain
    for number in range(num_prompts):
        held = made.index.matched(shared)
        loads = [Load(name, num_busy if held.get(name) == len(shared) else 0, 0) for name in names]
        asked = prompt(*LONG, f"question {number}")
        made.sent(asked, made.decide(asked, loads, hot_replicas=hot_replicas))
    return sum(num == len(shared) for num in made.index.matched(shared).values())


@pytest.mark.parametrize(
    ("num_prompts", "hot_replicas", "num_busy", "holders"),
    [
        # Few prompts make no beginning hot.
        (4, (3, 4), 0, 1),
        (60, (1, 4), 0, 1),
        (60, (3, 4), 0, 3),
        # Those that have it are busy: more get it, up to the bound.
        (60, (1, 4), 7, 4),
        (60, (1, 8), 7, 8),
        # And beyond it where they are far too busy.
        (60, (1, 4), 30, 8),
    ],
)
def test_a_hot_beginning_is_held_by_as_many_replicas_as_the_service_wants(
    num_prompts: int, hot_replicas: tuple[int, int], num_busy: int, holders: int
) -> None:
    assert holders_after(num_prompts, hot_replicas, num_busy=num_busy) == holders
