"""How fast the prefix cache matches, walks and evicts, on this machine and beside the least that could do."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from random import Random

from sapwood_engine.core.miss_ratio import MissRatio
from sapwood_engine.core.prefix_cache import PrefixCache, Shortfall
from sapwood_engine.core.request import Namespace
from sapwood_tools.bench_figures import Figure, interleaved, measured

_NAMESPACE = Namespace("bench")
_PAGE_SIZE = 16
_PAGE_BYTES = 4 * _PAGE_SIZE


def match_131072_page16() -> Iterable[Figure]:
    """A cached prompt of 131,072 tokens is matched again; baseline: its bytes compared once."""
    num_tokens = 131_072
    key = Random(1).randbytes(4 * num_tokens)
    cache = PrefixCache(num_pages=num_tokens // _PAGE_SIZE, page_size=_PAGE_SIZE)
    _store(cache, key)
    request, stored = bytes(bytearray(key)), bytes(bytearray(key))

    def match() -> None:
        found = cache.match(_NAMESPACE, request, limit_tokens=num_tokens - 1)
        assert found.num_usable_tokens == num_tokens - 1

    def compare() -> None:
        assert request == stored

    match()  # the first one splits off the page that must not be matched whole
    value, baseline = interleaved(match, compare, repetitions=500)
    yield measured("match_131072_page16", "us", value * 1e6, baseline * 1e6)


def walk_per_page() -> Iterable[Figure]:
    """A match along nodes of one page each, per page; baseline: the look-up of each page's bytes in a
    dictionary.
    """
    num_pages = 512
    key = Random(2).randbytes(num_pages * _PAGE_BYTES)
    cache = PrefixCache(num_pages=num_pages, page_size=_PAGE_SIZE)
    for end in range(1, num_pages + 1):
        _store(cache, key[: end * _PAGE_BYTES])
    assert cache.num_nodes == num_pages
    starts = range(0, len(key), _PAGE_BYTES)
    pages = {key[start : start + _PAGE_BYTES]: start for start in starts}

    def walk() -> None:
        found = cache.match(_NAMESPACE, key, limit_tokens=num_pages * _PAGE_SIZE)
        assert len(found.pages) == num_pages

    def look_up() -> None:
        for start in starts:
            assert pages[key[start : start + _PAGE_BYTES]] == start

    value, baseline = interleaved(walk, look_up, repetitions=300)
    yield measured("walk_per_page", "us", value * 1e6 / num_pages, baseline * 1e6 / num_pages)


def curve_request_4000() -> Iterable[Figure]:
    """What the miss-ratio curve takes for a request of 4,000 new tokens and an answer of 208, after 500 others that
    shared 1,000; baseline: what the cache takes for it.
    """
    num_prompt, num_answer, num_shared = 4_000, 208, 1_000
    random = Random(4)
    shared = random.randbytes(4 * num_shared)
    cache = PrefixCache(num_pages=50_000, page_size=_PAGE_SIZE)
    curve = MissRatio(num_pages=50_000, page_size=_PAGE_SIZE, token_bytes=4, sample_rate=0.05)
    keys = iter([shared + random.randbytes(4 * (num_prompt + num_answer - num_shared)) for _ in range(700)])
    served: list[bytes] = []

    def serve() -> None:
        served.append(next(keys))
        _store(cache, served[-1])

    def measure() -> None:
        key = served[-1]
        trail = curve.admitted(
            _NAMESPACE,
            key[: 4 * num_prompt],
            num_tokens=num_prompt,
            num_cached=num_shared if len(served) > 1 else 0,
            most_cached=num_prompt - 1,
        )
        curve.ended(trail, key)

    for _ in range(500):
        serve()
        measure()
    baseline, value = interleaved(serve, measure, repetitions=200)
    yield measured("curve_request_4000", "us", value * 1e6, baseline * 1e6)


def evict_page_1000000() -> Iterable[Figure]:
    """One page evicted of 1,000,000 cached in random recency; baseline: of 1,000.

    Prompts of 1 to 31 pages, which share nothing.
    """
    yield _evict("evict_page_1000000", lambda random: random.randint(1, 31))


def evict_leaf_1000000() -> Iterable[Figure]:
    """The same where each prompt is a single page: every eviction takes a node, from a random place of the
    memory.
    """
    yield _evict("evict_leaf_1000000", lambda _: 1)


def _evict(name: str, prompt_pages: Callable[[Random], int]) -> Figure:
    per_repetition = 250
    random = Random(3)
    gc.disable()  # the collector would walk the growing million nodes again and again
    large = _filled(1_000_000, prompt_pages, random)
    gc.enable()
    gc.collect()
    gc.freeze()
    small: list[PrefixCache] = []

    def evict(cache: PrefixCache) -> None:
        for _ in range(per_repetition):
            cache.evict(1)

    def evict_small() -> None:
        evict(small[-1])

    seconds = []
    for _ in range(40):
        small.append(_filled(1_000, prompt_pages, random))
        seconds.append(interleaved(lambda: evict(large), evict_small, repetitions=1))
    gc.unfreeze()
    values, baselines = (sorted(column) for column in zip(*seconds, strict=True))
    middle = len(seconds) // 2
    scale = 1e6 / per_repetition
    return measured(name, "us", values[middle] * scale, baselines[middle] * scale)


def _filled(num_pages: int, prompt_pages: Callable[[Random], int], random: Random) -> PrefixCache:
    """Return a cache with every page in use by some cached prompt, prompts used last in random order."""
    cache = PrefixCache(num_pages=num_pages, page_size=_PAGE_SIZE)
    keys = []
    num_left = num_pages
    while num_left:
        num = min(num_left, prompt_pages(random))
        key = random.randbytes(num * _PAGE_BYTES)
        _store(cache, key)
        keys.append(key)
        num_left -= num
    random.shuffle(keys)
    for key in keys:
        cache.match(_NAMESPACE, key, limit_tokens=len(key) // 4)
    assert cache.counts().evictable == num_pages
    return cache


def _store(cache: PrefixCache, key: bytes) -> None:
    found = cache.match(_NAMESPACE, key, limit_tokens=len(key) // 4)
    receipt = cache.lock(found)
    own = cache.allocate(len(key) // _PAGE_BYTES - len(found.pages))
    assert not isinstance(own, Shortfall)
    cache.release(cache.finish(receipt, key, (*found.pages, *own)))
