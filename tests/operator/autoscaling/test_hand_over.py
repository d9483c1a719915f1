"""Which prefixes go from one engine to which others."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from sapwood_contract.http import MAX_HOT_TOKENS, HotPrefix, HotPrefixes, worth_after
from sapwood_contract.keys import TOKEN_BYTES, chain, namespace_root, placing_weight
from sapwood_operator.autoscaling.engines import Engine
from sapwood_operator.autoscaling.hand_over import Taker, gather, share_out
from sapwood_operator.autoscaling.victims import Cache, NoCache

PAGE = 4
FAMILY = ("r1", PAGE)
A, B = Engine("a", "ua"), Engine("b", "ub")
SYSTEM = (1, 2, 3, 4)
CHAT = (*SYSTEM, 5, 6, 7, 8)


def names(token_ids: tuple[int, ...], **space: Any) -> list[int]:
    """What engines call the blocks of these tokens."""
    root = namespace_root(
        "r1", space.get("adapter"), space.get("extra_key"), space.get("cache_salt"), space.get("tenant")
    )
    hashes = chain(root, array("i", token_ids).tobytes(), PAGE * TOKEN_BYTES)
    return list(array("Q", b"".join(each[:8] for each in hashes)))


def a_taker(engine: Engine = A, *held: int, room: int = 1_000, family: tuple[str, int] = FAMILY) -> Taker:
    cache = Cache(family, ((array("Q", held), 1.0),)) if held else NoCache("it did not answer")
    replica = f"team/chat/{engine.uid}"
    return Taker(engine=engine, replica=replica, family=family, room_tokens=room, cache=cache)


def hot(*prefixes: HotPrefix, revision: str = "r1") -> HotPrefixes:
    return HotPrefixes(revision, prefixes)


def shared(told: HotPrefixes, *takers: Taker) -> dict[str, tuple[HotPrefix, ...]]:
    return {engine.pod: given.prefixes for engine, given in share_out(told, takers).items()}


def even(token_ids: tuple[int, ...], worth_tokens: float, **space: Any) -> HotPrefix:
    """A prefix of which one token is used as often as the other."""
    return HotPrefix(token_ids, worth_tokens, parts=((len(token_ids), worth_tokens / len(token_ids)),), **space)


WORTH_IT = even(CHAT, 8.0)
SHARED = HotPrefix(CHAT, 40 * 4.0 + 0.04, ((4, 40.0), (4, 0.01)))
"""A system prompt with a tail that nobody asks for again."""


def test_a_prefix_goes_to_the_one_survivor_to_which_gateways_send_what_begins_so() -> None:
    prefixes = [even((n, n, n, n), 100.0) for n in range(40)]
    given = shared(hot(*prefixes), a_taker(A), a_taker(B))
    assert set(given) == {"a", "b"}
    for prefix in prefixes:
        key = chain(namespace_root("r1", None, None, None), array("i", prefix.token_ids).tobytes(), PAGE * TOKEN_BYTES)[
            0
        ]
        place = max((A, B), key=lambda engine: placing_weight(key, f"team/chat/{engine.uid}"))
        assert prefix in given[place.pod]
    assert sum(map(len, given.values())) == len(prefixes)


def test_prefixes_that_begin_alike_meet_in_one_cache() -> None:
    alike = [HotPrefix((*SYSTEM, n, n, n, n), 100.0) for n in range(20)]
    (given,) = shared(hot(*alike), a_taker(A), a_taker(B)).values()
    assert len(given) == 20


@pytest.mark.parametrize(
    ("prefix", "taker"),
    [
        pytest.param(HotPrefix(CHAT, 7.9), a_taker(), id="saves less than it costs to compute"),
        pytest.param(WORTH_IT, a_taker(A, *names(CHAT)), id="is held already"),
        pytest.param(WORTH_IT, a_taker(room=3), id="finds room for no block"),
        pytest.param(SHARED, a_taker(A, *names(SYSTEM)), id="is lacking in its worthless tail alone"),
        pytest.param(WORTH_IT, a_taker(family=("r2", PAGE)), id="is of another model revision"),
    ],
)
def test_a_prefix_is_not_handed_over_that(prefix: HotPrefix, taker: Taker) -> None:
    assert shared(hot(prefix), taker) == {}


def test_what_is_worth_as_much_as_it_costs_is_handed_over() -> None:
    assert shared(hot(WORTH_IT), a_taker(room=8)) == {"a": (WORTH_IT,)}


def test_only_what_its_taker_lacks_has_to_be_computed_and_has_worth() -> None:
    common = HotPrefix(CHAT, 40 * 4.0 + 2 * 4.0, ((4, 40.0), (4, 2.0)))
    assert shared(hot(common), a_taker(A, *names(SYSTEM), room=4)) == {"a": (replace(common, worth_tokens=8.0),)}
    assert shared(hot(common), a_taker(A, room=8)) == {"a": (common,)}


def test_where_parts_are_not_told_one_token_is_used_as_often_as_the_other() -> None:
    assert shared(hot(HotPrefix(CHAT, 16.0)), a_taker()) == {"a": (even(CHAT, 16.0),)}


def test_a_prefix_ends_where_it_is_used_less_than_once() -> None:
    assert shared(hot(SHARED), a_taker()) == {"a": (HotPrefix(SYSTEM, 160.0, ((4, 40.0),)),)}


@pytest.mark.parametrize(("room", "given"), [(4, 4), (7, 4), (8, 8), (11, 8)])
def test_little_room_takes_the_beginning_in_whole_blocks(room: int, given: int) -> None:
    prompt = HotPrefix((1,) * 12, 60.0, ((6, 8.0), (6, 2.0)))
    ((found,),) = shared(hot(prompt), a_taker(room=room)).values()
    assert found.token_ids == (1,) * given
    assert sum(num_tokens for num_tokens, _ in found.parts) == given
    assert found.worth_tokens == worth_after(prompt.parts, 0) - worth_after(prompt.parts, given)


def test_a_call_takes_no_more_than_engines_do() -> None:
    ((found,),) = shared(hot(HotPrefix((1,) * (MAX_HOT_TOKENS + 1), 1e9)), a_taker(room=10**9)).values()
    assert len(found.token_ids) == MAX_HOT_TOKENS


def test_what_anybody_who_stays_holds_is_not_handed_to_others() -> None:
    assert shared(hot(WORTH_IT), a_taker(A, *names(CHAT)), a_taker(B)) == {}


def test_blocks_of_another_tenant_are_other_blocks() -> None:
    theirs = even(CHAT, 8.0, tenant="other", extra_key="k", cache_salt="s")
    assert shared(hot(theirs), a_taker(A, *names(CHAT))) == {"a": (theirs,)}
    own = names(CHAT, tenant="other", extra_key="k", cache_salt="s")
    assert shared(hot(theirs), a_taker(A, *own)) == {}


def test_room_goes_to_what_is_worth_most() -> None:
    less, more = HotPrefix((9,) * 8, 40.0, ((8, 5.0),)), HotPrefix(CHAT, 80.0, ((8, 10.0),))
    assert shared(hot(less, more), a_taker(room=8)) == {"a": (more,)}
    assert shared(hot(less, more), a_taker(room=16)) == {"a": (more, less)}


def test_a_beginning_that_was_given_already_costs_nothing() -> None:
    longer = HotPrefix((*SYSTEM, 9, 9, 9, 9), 4.0, ((4, 2.0), (4, 1.0)))
    assert shared(hot(WORTH_IT, longer), a_taker(room=12)) == {"a": (WORTH_IT, longer)}


def test_what_fills_no_block_is_computed_whole() -> None:
    short = even((1, 2), 2.0)
    assert shared(hot(short), a_taker(room=1)) == {}
    assert shared(hot(short), a_taker(room=2)) == {"a": (short,)}


def test_a_new_engine_gets_what_is_worth_most_of_all_that_serve_and_nothing_twice() -> None:
    other, chat = even((7,) * 8, 90.0), even(CHAT, 20.0)
    told = [hot(WORTH_IT, HotPrefix((9,) * 8, 1.0)), hot(chat, other), hot(other, revision="r2")]
    assert gather(told, a_taker()) == HotPrefixes("r1", (other, chat), is_last=True)


def test_a_new_engine_is_told_that_there_is_nothing() -> None:
    assert gather([], a_taker()) == HotPrefixes("r1", (), is_last=True)
