"""Which prefixes go from one engine to which others: those whose use is worth more than computing them anew.

A prefix is handed over as far as the prefill that its tokens are expected to save is what its taker has to compute for
them: a list of tokens costs nothing on its way, and all that on its arrival. So it ends where it is used less than
once, and where the room ends. What somebody who stays holds already is left out. Each goes to one survivor, by the rule
by which the gateway places a prompt that nobody holds: so all that begin alike meet in one cache, and requests that
come before it is computed go there too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sapwood_contract.http import BLOCK_NAME_BYTES, MAX_HOT_TOKENS, HotPrefix, HotPrefixes, worth_after
from sapwood_contract.keys import TOKEN_BYTES, chain, namespace_root, placing_weight
from sapwood_operator.autoscaling.engines import Engine
from sapwood_operator.autoscaling.victims import Cache, NoCache

LEAST_WORTH = 1.0
"""Tokens that a token of a prefix is expected to save, for it is computed once."""


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
        if not written.num_tokens or any(not shelf.num_lacking(written) for shelf in shelves):
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
    """What of a prefix is worth its computing, under the names of its blocks."""

    prefix: HotPrefix
    parts: tuple[tuple[int, float], ...]
    """As of the prefix, and never empty where it is worth anything."""
    placing_key: bytes
    """Hash of the first one; empty where it fills none."""
    names: tuple[int, ...]
    num_tokens: int
    """In its blocks; all of it where it fills none."""

    def up_to(self, num_tokens: int, *, held: int) -> HotPrefix:
        """Return its first ``num_tokens`` for somebody who holds the first ``held`` of them."""
        parts, left = [], num_tokens
        for part_tokens, uses in self.parts:
            parts.append((min(part_tokens, left), uses))
            left -= part_tokens
            if left <= 0:
                break
        token_ids, worth = self.prefix.token_ids[:num_tokens], worth_after(parts, held)
        return replace(self.prefix, token_ids=token_ids, worth_tokens=worth, parts=tuple(parts))


def _by_worth(prefixes: Iterable[HotPrefix]) -> list[HotPrefix]:
    return sorted(prefixes, key=lambda prefix: -prefix.worth_tokens)


def _written(prefix: HotPrefix, family: tuple[str, int]) -> _Written:
    revision, page_tokens = family
    parts = _parts_worth_it(prefix)
    token_ids = prefix.token_ids[: sum(num_tokens for num_tokens, _ in parts)]
    root = namespace_root(revision, prefix.adapter, prefix.extra_key, prefix.cache_salt, prefix.tenant)
    hashes = chain(root, array("i", token_ids).tobytes(), page_tokens * TOKEN_BYTES)
    names = tuple(array("Q", b"".join(each[:BLOCK_NAME_BYTES] for each in hashes)))
    num_tokens = len(names) * page_tokens or len(token_ids)
    return _Written(prefix, parts, hashes[0] if hashes else b"", names, num_tokens)


def _parts_worth_it(prefix: HotPrefix) -> tuple[tuple[int, float], ...]:
    """Return its parts but for what comes after the last one that is used often enough."""
    num_tokens = max(1, len(prefix.token_ids))
    parts = prefix.parts or ((num_tokens, prefix.worth_tokens / num_tokens),)
    num_worth_it = max((at for at, (_, uses) in enumerate(parts, 1) if uses >= LEAST_WORTH), default=0)
    return parts[:num_worth_it]


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
        """Take a prefix, as much of its beginning as there is room for."""
        page_tokens = self.taker.family[1] if written.names else written.num_tokens
        held = written.num_tokens - self.num_lacking(written)
        room = min(written.num_tokens, held + self._room_tokens, MAX_HOT_TOKENS - self._num_tokens)
        num_tokens = room // page_tokens * page_tokens if page_tokens else 0
        if num_tokens > held:
            self.prefixes.append(written.up_to(num_tokens, held=held))
            self._num_tokens += num_tokens
            self._room_tokens -= num_tokens - held
            self._held.update(written.names[: num_tokens // page_tokens])

    def given(self) -> HotPrefixes:
        """Return the call that gives all of it."""
        return HotPrefixes(self.taker.family[0], tuple(self.prefixes), is_last=True)
