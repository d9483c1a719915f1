"""Which prefixes go from one engine to which others: those whose use is worth more than computing them anew.

A prefix is handed over where the prefill that it is expected to save, `worth_tokens`, is at least what its taker has to
compute for it: a list of tokens costs nothing on its way, and all that on its arrival. What somebody who stays holds
already is left out. Each goes to one survivor, by the rule by which the gateway places a prompt that nobody holds: so
all that begin alike meet in one cache, and requests that come before it is computed go there too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sapwood_contract.http import BLOCK_NAME_BYTES, MAX_HOT_TOKENS, HotPrefix, HotPrefixes
from sapwood_contract.keys import TOKEN_BYTES, chain, namespace_root, placing_weight
from sapwood_operator.autoscaling.engines import Engine
from sapwood_operator.autoscaling.victims import Cache, NoCache

LEAST_WORTH = 1.0
"""Tokens that a prefix is expected to save, for each that its taker computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """An engine that can take prefixes."""

    engine: Engine
    replica: str
    """`sapwood_contract.keys.replica_id`."""
    family: tuple[str, int]
    """Model revision and tokens of a block, at least 1."""
    room_tokens: int
    cache: Cache | NoCache


def share_out(hot: HotPrefixes, takers: Sequence[Taker]) -> Mapping[Engine, HotPrefixes]:
    """Return what each of ``takers`` gets of a victim's prefixes; who gets none is left out, as are all of another
    model revision. The takers left are of one family.
    """
    shelves = [_Shelf(taker) for taker in takers if taker.family[0] == hot.model_revision]
    for prefix in _by_worth(hot.prefixes) if shelves else ():
        written = _written(prefix, shelves[0].taker.family)
        if any(not shelf.num_lacking(written) for shelf in shelves):
            continue  # requests for it go there
        max(shelves, key=lambda shelf: shelf.weight(written)).offer(written)
    return {shelf.taker.engine: shelf.given() for shelf in shelves if shelf.prefixes}


def gather(hot: Iterable[HotPrefixes], newcomer: Taker) -> HotPrefixes:
    """Return what a new engine gets of those that serve: most worth first, as much as it has room for."""
    shelf = _Shelf(newcomer)
    same = [prefix for each in hot if each.model_revision == newcomer.family[0] for prefix in each.prefixes]
    for prefix in _by_worth(same):
        shelf.offer(_written(prefix, newcomer.family))
    return shelf.given()


@dataclass(frozen=True, slots=True)
class _Written:
    """A prefix under the names of its blocks."""

    prefix: HotPrefix
    placing_key: bytes
    """Hash of the first one; empty where it fills none."""
    names: tuple[int, ...]
    num_tokens: int
    """In its blocks; all of it where it fills none."""


def _by_worth(prefixes: Iterable[HotPrefix]) -> list[HotPrefix]:
    return sorted(prefixes, key=lambda prefix: -prefix.worth_tokens)


def _written(prefix: HotPrefix, family: tuple[str, int]) -> _Written:
    revision, page_tokens = family
    root = namespace_root(revision, prefix.adapter, prefix.extra_key, prefix.cache_salt, prefix.tenant)
    hashes = chain(root, array("i", prefix.token_ids).tobytes(), page_tokens * TOKEN_BYTES)
    names = tuple(array("Q", b"".join(each[:BLOCK_NAME_BYTES] for each in hashes)))
    num_tokens = len(names) * page_tokens or len(prefix.token_ids)
    return _Written(prefix, hashes[0] if hashes else b"", names, num_tokens)


class _Shelf:
    """What one taker holds, and is given."""

    def __init__(self, taker: Taker) -> None:
        self.taker = taker
        self.prefixes: list[HotPrefix] = []
        self._num_tokens = 0
        self._room_tokens = taker.room_tokens
        self._held: set[int] = set()
        if isinstance(taker.cache, Cache) and taker.cache.family == taker.family:
            self._held.update(block for blocks, _ in taker.cache.nodes for block in blocks)

    def weight(self, written: _Written) -> tuple[bytes, str]:
        """Return how much this is the place of prompts that begin so."""
        return (placing_weight(written.placing_key, self.taker.replica), self.taker.replica)

    def num_lacking(self, written: _Written) -> int:
        """Return how many tokens would have to be computed here."""
        held = next((at for at, name in enumerate(written.names) if name not in self._held), len(written.names))
        return written.num_tokens - held * self.taker.family[1]

    def offer(self, written: _Written) -> None:
        """Take a prefix, if it is worth it and there is room."""
        prefix, lacking = written.prefix, self.num_lacking(written)
        is_worth_it = 0 < lacking <= self._room_tokens and prefix.worth_tokens >= LEAST_WORTH * lacking
        if is_worth_it and self._num_tokens + len(prefix.token_ids) <= MAX_HOT_TOKENS:
            self.prefixes.append(prefix)
            self._num_tokens += len(prefix.token_ids)
            self._room_tokens -= lacking
            self._held.update(written.names)

    def given(self) -> HotPrefixes:
        """Return the call that gives all of it."""
        return HotPrefixes(self.taker.family[0], tuple(self.prefixes), is_last=True)
