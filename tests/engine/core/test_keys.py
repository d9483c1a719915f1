"""Keys: what sequences share by tokens, by pairs of tokens, and where content stands in place of tokens."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_fake_executor import capacity_for_tests
from support_prefix_cache import allocate, cached, match, serve
from support_scheduling import Engine, request

from sapwood_engine.core.admission import Refused, SchedulerConfig
from sapwood_engine.core.keys import GrowingKey, KeyFormat, KeyUnit, token_key
from sapwood_engine.core.prefix_cache import PageCounts, PrefixCache
from sapwood_engine.core.request import ContentSpan

FORMATS = [KeyFormat(), KeyFormat("pairs"), KeyFormat(content=True), KeyFormat("pairs", content=True)]
PLACEHOLDER = 9


def image(start: int, length: int, name: bytes) -> ContentSpan:
    return ContentSpan(start, length, name)


def same_units(keys: KeyFormat, one: bytes, other: bytes) -> int:
    """Units from the start that two keys share."""
    size, num = keys.unit_bytes, 0
    while num < min(len(one), len(other)) // size and one[: (num + 1) * size] == other[: (num + 1) * size]:
        num += 1
    return num


# --- units


@pytest.mark.parametrize(("num_tokens", "num_stored"), [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8)])
def test_by_pairs_a_sequence_stores_the_pages_of_one_unit_less(num_tokens: int, num_stored: int) -> None:
    cache = PrefixCache(num_pages=8, page_size=4, key_unit="pairs", partial_pages=False)
    serve(cache, range(num_tokens))
    assert cache.counts().evictable * 4 == num_stored
    receipt = cache.lock(match(cache, []))
    inserted = cache.insert(receipt, cache.keys.key(range(50, 50 + num_tokens)), allocate(cache, 3))
    assert len(inserted.pages) * 4 == num_stored


def test_by_pairs_a_position_is_shared_only_with_who_has_the_token_behind_it_too() -> None:
    cache = PrefixCache(num_pages=8, page_size=4, key_unit="pairs")
    serve(cache, [1, 2, 3, 4, 5, 6, 7])
    assert cached(cache, [1, 2, 3, 4, 5]) == 4
    assert cached(cache, [1, 2, 3, 4, 9]) == 3
    assert cached(cache, [1, 2, 3, 4]) == 3
    assert cached(cache, [1]) == 0


def test_by_pairs_what_is_matched_whole_and_given_back_uncomputed_stays_as_it_is() -> None:
    """Eight tokens are locked, and eight tokens make only seven units."""
    cache = PrefixCache(num_pages=8, page_size=4, key_unit="pairs")
    serve(cache, range(9))
    found = match(cache, range(9))
    inserted = cache.insert(cache.lock(found), cache.keys.key(range(8)), found.pages)
    assert (inserted.first, inserted.pages) == (2, ())
    assert cache.finish(inserted.receipt, cache.keys.key(range(8)), found.pages) == []
    assert cache.counts() == PageCounts(free=6, owned=0, evictable=2, protected=0)
    assert cache.check_invariants([]) == []


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("num_prompt", [1, 2, 5, 16, 17, 40])
def test_by_pairs_a_repeat_of_an_answered_prompt_computes_one_token(num_prompt: int, page_size: int) -> None:
    """The answer's first token makes the prompt's last pair."""
    engine = Engine(capacity=capacity_for_tests(page_size=page_size), key_unit="pairs")
    for name in ("first", "again"):
        engine.submit(request(name, range(num_prompt), max_tokens=3))
        engine.run()
    assert engine.answers["again"].num_cached_tokens == num_prompt - 1
    assert engine.answers["again"].token_ids == engine.answers["first"].token_ids


@pytest.mark.parametrize(
    ("unit", "num_shared", "waits"), [("tokens", 8, True), ("pairs", 8, False), ("pairs", 9, True)]
)
def test_in_batch_sharing_counts_the_units_that_will_be_found(unit: KeyUnit, num_shared: int, waits: bool) -> None:
    """By pairs eight common tokens are seven common units, hence one page and not the two that are worth a wait."""
    engine = Engine(config=SchedulerConfig(policy="fcfs", min_shared_tokens=8), key_unit=unit)
    shared = list(range(num_shared))
    engine.submit(request("leads", [*shared, 50, 51, 52, 53]))
    engine.submit(request("follows", [*shared, 60, 61, 62, 63]))
    engine.step()
    assert [event.request_id for event in engine.admitted] == (["leads"] if waits else ["leads", "follows"])
    engine.run()
    assert engine.answers["follows"].num_cached_tokens == (8 if waits else 0)


@pytest.mark.parametrize(("unit", "first"), [("tokens", "a"), ("pairs", "b")])
def test_dfs_weight_weighs_prompts_by_the_first_page_of_their_keys(unit: KeyUnit, first: str) -> None:
    """By pairs the first page of four units takes five tokens, and the fifth tells a from b and c."""
    engine = Engine(config=SchedulerConfig(policy="dfs-weight", max_running=1), key_unit=unit)
    for name, ids in (("d", [9] * 6), ("a", [0, 1, 2, 3, 4, 1]), ("b", [0, 1, 2, 3, 5, 1]), ("c", [0, 1, 2, 3, 5, 2])):
        engine.submit(request(name, ids, max_tokens=1))
    engine.step()
    assert [event.request_id for event in engine.admitted] == [first]


@pytest.mark.parametrize("keys", FORMATS, ids=str)
@given(data=st.data())
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_a_key_that_grew_is_the_key_made_at_once(keys: KeyFormat, data: st.DataObject) -> None:
    prompt = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
    start = data.draw(st.integers(0, len(prompt) - 1))
    length = data.draw(st.integers(1, len(prompt) - start))
    content = (image(start, length, b"a"),) if keys.content else ()
    tokens = array("i", prompt)
    growing = GrowingKey(keys, tokens, content)
    for more in data.draw(st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=4)):
        tokens.extend(more)
        if data.draw(st.booleans()):
            assert growing.key() == keys.key(tokens, content)
    whole = keys.key(tokens, content)
    assert len(whole) == keys.num_units(len(tokens)) * keys.unit_bytes
    for num_tokens in range(len(tokens) + 1):
        assert growing.key(num_tokens) == whole[: keys.num_units(num_tokens) * keys.unit_bytes]


@pytest.mark.parametrize("keys", FORMATS, ids=str)
def test_the_tokens_can_be_read_from_a_key(keys: KeyFormat) -> None:
    assert keys.token_ids(keys.key([5, 6, 2**31 - 1, 0])) == [5, 6, 2**31 - 1, 0][: keys.num_units(4)]


def test_a_key_of_tokens_alone_is_their_bytes() -> None:
    assert token_key([1, 258]) == KeyFormat().key([1, 258]) == bytes([1, 0, 0, 0, 2, 1, 0, 0])


# --- content


def test_prompts_with_the_same_placeholders_share_what_precedes_the_first_different_image() -> None:
    keys = KeyFormat(content=True)
    ids = [1, 2, *[PLACEHOLDER] * 3, 3, *[PLACEHOLDER] * 3, 4]
    one = keys.key(ids, [image(2, 3, b"cat"), image(6, 3, b"dog")])
    assert same_units(keys, one, keys.key(ids, [image(2, 3, b"cat"), image(6, 3, b"dog")])) == 10
    assert same_units(keys, one, keys.key(ids, [image(2, 3, b"cat"), image(6, 3, b"cow")])) == 6
    assert same_units(keys, one, keys.key(ids, [image(2, 3, b"cow"), image(6, 3, b"dog")])) == 2
    assert same_units(keys, one, keys.key(ids)) == 2


def test_by_pairs_the_position_before_an_image_depends_on_it() -> None:
    keys = KeyFormat("pairs", content=True)
    ids = [1, 2, PLACEHOLDER, 3]
    assert same_units(keys, keys.key(ids, [image(2, 1, b"cat")]), keys.key(ids, [image(2, 1, b"dog")])) == 1


def test_every_position_of_an_image_differs_from_every_token_and_every_other_position() -> None:
    keys = KeyFormat(content=True)
    units = set()
    for content in (image(0, 500, b"cat"), image(0, 500, b"dog"), image(0, 499, b"cat")):
        key = keys.key([PLACEHOLDER] * content.length, [content])
        units |= {key[at : at + keys.unit_bytes] for at in range(0, len(key), keys.unit_bytes)}
        assert keys.token_ids(key) == [-1] * content.length
    assert len(units) == 1499


def test_the_same_image_is_shared_wherever_its_prompt_is_the_same_up_to_it() -> None:
    cache = PrefixCache(num_pages=16, page_size=4, content=True)
    ids = [1, *[PLACEHOLDER] * 6, 2, 3]
    assert serve(cache, ids, content=[image(1, 6, b"cat")]) == 0
    assert serve(cache, ids, content=[image(1, 6, b"cat")]) == 8
    assert serve(cache, ids, content=[image(1, 6, b"dog")]) == 1
    (space,) = cache.snapshot(max_nodes=9, token_ids=99)["namespaces"]
    assert space["nodes"][0]["token_ids"][0] == 1


def test_requests_share_an_image_and_what_precedes_another() -> None:
    engine = Engine(content=True)
    ids = [*range(8), *[PLACEHOLDER] * 6, 20, 21]
    for name, picture in (("first", b"cat"), ("same", b"cat"), ("other", b"dog")):
        engine.submit(request(name, ids, max_tokens=6, content=(image(8, 6, picture),)))
        engine.run()
    assert [engine.answers[name].num_cached_tokens for name in ("first", "same", "other")] == [0, 15, 8]


def test_a_request_with_an_image_is_not_held_back_for_one_with_another() -> None:
    engine = Engine(config=SchedulerConfig(policy="fcfs", chunk_tokens=4, min_shared_tokens=1), content=True)
    ids = [PLACEHOLDER] * 40
    for name in ("cat", "dog", "cat again"):
        engine.submit(request(name, ids, content=(image(0, 40, name.split()[0].encode()),)))
    engine.step()
    assert [event.request_id for event in engine.admitted] == ["cat", "dog"]
    engine.run()
    assert engine.answers["cat again"].num_cached_tokens == 36


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ((image(0, 0, b"a"),), "position 0 takes 0 tokens"),
        ((image(0, 2, b""),), "its hash 0 bytes"),
        ((image(-1, 2, b"a"),), "position -1"),
        ((image(0, 3, b"a"), image(2, 2, b"b")), "what is before it ends at position 3"),
        ((image(3, 6, b"a"),), "ends at position 9 of a prompt of 8"),
    ],
)
def test_content_that_does_not_lie_in_its_prompt_is_refused(content: tuple[ContentSpan, ...], sentence: str) -> None:
    outcome = Engine(content=True).submit(request("r", range(8), content=content))
    assert isinstance(outcome, Refused)
    assert outcome.reason == "bad_content"
    assert sentence in outcome.message


def test_content_is_refused_where_keys_could_not_tell_it() -> None:
    outcome = Engine().submit(request("r", range(8), content=(image(0, 2, b"a"),)))
    assert isinstance(outcome, Refused)
    assert outcome.reason == "bad_content"
