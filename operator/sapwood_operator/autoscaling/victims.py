"""Which replica goes when there are to be fewer: the one whose going loses least.

::

    1  who is not ready: without a node before who waits, who waits before who runs; the newest first
    2  who is on its way out already
    3  least (worth of what it caches and no replica that stays holds + its work in flight), both in tokens of prefill
    4  who did not say what it holds; where nobody did, by the work in flight, then the newest

The name decides last. The first line is also what a ReplicaSet's controller does, whatever it is told by
marks: so it takes whom we have chosen. Several go one after the other: what the first one held counts no more when the
second one is chosen.
"""

from __future__ import annotations

import base64
import binascii
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sapwood_contract.http import BLOCK_NAME_BYTES, CachedNodes

Progress = Literal["unplaced", "waiting", "running", "ready"]
"""unplaced: no node yet; waiting: its containers are made; running: its engine loads, warms up or fails; ready."""
Standing = Literal["goes_first", "leaving", "stays"]
"""goes_first: it bears the mark by which the ReplicaSet's controller takes it; leaving: it finishes what it has."""
PROGRESS: tuple[Progress, ...] = ("unplaced", "waiting", "running", "ready")
STANDING: tuple[Standing, ...] = ("goes_first", "leaving", "stays")

_MOST_NAMES = 2**17
"""Blocks looked at: a choice is made between two other things that the operator does, so within a tenth of a second."""


@dataclass(frozen=True, slots=True)
class Cache:
    """What one replica holds."""

    family: tuple[str, int]
    """Model revision and page size: names of blocks mean nothing in another one."""
    nodes: tuple[tuple[array[int], float], ...]
    """Names of blocks as numbers, and what they are worth together, in tokens."""

    @property
    def worth_tokens(self) -> float:
        """Tokens of prefill that it is expected to save."""
        return math.fsum(worth for _, worth in self.nodes)


@dataclass(frozen=True, slots=True)
class NoCache:
    """What a replica holds is not known; ``why`` is for people."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One replica that could go."""

    name: str
    progress: Progress
    standing: Standing = "stays"
    created: float = 0.0
    """Unix time."""
    cache: Cache | NoCache = NoCache("it was not asked")
    work_tokens: float | None = None
    """Of requests that run or wait: what another one would have to compute for them. None: unknown."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What goes with a replica, in tokens of prefill."""

    worth_tokens: float
    """Of its cache."""
    nowhere_else_tokens: float
    """Of that: held by nobody who stays."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One replica that goes, and why this one."""

    name: str
    loss: Loss | None
    """None: unknown, or it was not asked for."""
    message: str
    """A sentence for people."""


def read_cache(told: CachedNodes) -> Cache:
    """Return what an engine says it holds; raises ValueError for what cannot be names or a worth."""
    nodes = []
    for node in told.nodes:
        try:
            raw = base64.b64decode(node.blocks, validate=True)
        except binascii.Error as error:
            raise ValueError(f"blocks of a node are no base64: {error}") from None
        if len(raw) % BLOCK_NAME_BYTES:
            raise ValueError(f"blocks of a node have {len(raw)} bytes, no multiple of {BLOCK_NAME_BYTES}")
        if not 0 <= node.worth_tokens < math.inf:
            raise ValueError(f"worth_tokens: {node.worth_tokens!r} is no number of tokens")
        nodes.append((array("Q", raw), node.worth_tokens))
    return Cache((told.model_revision, told.page_size), tuple(nodes))


def choose(candidates: Sequence[Candidate], count: int) -> tuple[Choice, ...]:
    """Return the ``count`` of ``candidates`` that go, in the order in which they are chosen; all where there are fewer.

    What a cache is worth beside others is reckoned only where it decides.
    """
    left = sorted(candidates, key=_before_worth)
    chosen: list[Choice] = []
    while left and len(chosen) < count:
        group, wanted = _group(left), count - len(chosen)
        if len(group) > wanted:
            chosen += _weigh(group, left[len(group) :], wanted)
        else:
            chosen += [Choice(each.name, None, _why_all(each)) for each in group]
        left = left[len(group) :]
    return tuple(chosen)


def losses(staying: Sequence[Candidate], going: Sequence[Candidate]) -> Mapping[str, Loss]:
    """Return what goes with each of ``going`` whose cache is known, by name, if all of them go.

    What only those hold that go is counted once: for the first of them. One that stays and did not say what it holds
    holds nothing.
    """
    held = _Held([*staying, *going])
    found: dict[str, Loss] = {}
    for each in reversed(going):
        if isinstance(each.cache, Cache):
            found[each.name] = held.loss(each.cache)
            held.take_away(each.cache)
    return {each.name: found[each.name] for each in going if each.name in found}


def _before_worth(candidate: Candidate) -> tuple[int, int, float, str]:
    progress = PROGRESS.index(candidate.progress)
    newest_first = -candidate.created if candidate.progress != "ready" else 0.0
    return (progress, STANDING.index(candidate.standing), newest_first, candidate.name)


def _group(left: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return those at the beginning of ``left`` between whom nothing but their loss decides."""
    first = left[0]
    if first.progress != "ready":
        return left[:1]
    return [each for each in left if each.standing == first.standing]


def _why_all(candidate: Candidate) -> str:
    if candidate.progress == "ready":
        why = "all that are ready go" if candidate.standing == "stays" else "it was on its way out already"
        return f"{candidate.name} goes: {why}"
    how = {"unplaced": "has no node yet", "waiting": "has not started yet", "running": "is not ready"}
    return f"{candidate.name} goes: it {how[candidate.progress]}"


class _Held:
    """Who holds each block, and what each holds that nobody else does: counted once, and less with each that goes.

    Names are hashes, so those that end in so many zero bits are a fair sample: of more than `_MOST_NAMES` only they are
    looked at, and stand for all.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        caches = [each.cache for each in candidates if isinstance(each.cache, Cache)]
        num_names = sum(len(blocks) for cache in caches for blocks, _ in cache.nodes)
        bits = max(0, math.ceil(math.log2(max(1, num_names) / _MOST_NAMES)))
        self._mask = (1 << bits) - 1
        # By the identity of a cache, which may be that of several replicas.
        self._blocks = {id(cache): self._sampled(cache) for cache in caches}
        self._worths = {id(cache): cache.worth_tokens for cache in caches}
        self._holders: dict[tuple[str, int], dict[int, list[int]]] = {}
        for cache in caches:
            holders = self._holders.setdefault(cache.family, {})
            for name in self._blocks[id(cache)]:
                holders.setdefault(name, []).append(id(cache))
        self._alone = {id(cache): self._held_alone(cache) for cache in caches}

    def loss(self, cache: Cache) -> Loss:
        """Return what goes with a cache that is among the holders."""
        worth = self._worths[id(cache)]
        return Loss(worth, min(worth, self._alone[id(cache)] * (self._mask + 1)))

    def take_away(self, cache: Cache) -> None:
        """The cache is none of the holders any more."""
        holders = self._holders[cache.family]
        for name in self._blocks[id(cache)]:
            left = holders[name]
            left.remove(id(cache))
            if len(left) == 1:
                self._alone[left[0]] += self._blocks[left[0]][name]

    def _sampled(self, cache: Cache) -> dict[int, float]:
        """Return what each block of the sample is worth."""
        mask = self._mask
        return {name: worth / len(blocks) for blocks, worth in cache.nodes for name in blocks if not name & mask}

    def _held_alone(self, cache: Cache) -> float:
        holders = self._holders[cache.family]
        return math.fsum(worth for name, worth in self._blocks[id(cache)].items() if len(holders[name]) == 1)


def _weigh(group: Sequence[Candidate], others: Sequence[Candidate], count: int) -> list[Choice]:
    """Choose ``count`` of more than so many, one after the other; ``others`` stay whatever is chosen."""
    left = list(group)
    held = _Held([*group, *others])
    chosen: list[Choice] = []
    while len(chosen) < count:
        known = {
            each.name: held.loss(each.cache)
            for each in left
            if isinstance(each.cache, Cache) and each.work_tokens is not None
        }
        picked = min(left, key=lambda each: _loss_key(each, known))
        left.remove(picked)
        if isinstance(picked.cache, Cache):
            held.take_away(picked.cache)
        chosen.append(Choice(picked.name, known.get(picked.name), _why_least(picked, left, known)))
    return chosen


def _loss_key(candidate: Candidate, known: Mapping[str, Loss]) -> tuple[bool, float, float, str]:
    work = math.inf if candidate.work_tokens is None else candidate.work_tokens
    if candidate.name in known:
        return (False, known[candidate.name].nowhere_else_tokens + work, 0.0, candidate.name)
    return (True, work, -candidate.created, candidate.name)


def _why_least(picked: Candidate, others: Sequence[Candidate], known: Mapping[str, Loss]) -> str:
    if picked.name not in known:
        work = picked.work_tokens
        least = "the newest" if work is None else f"the one with least in flight, {work:,.0f} tokens"
        return f"{picked.name} goes: no replica said what its cache is worth, and it is {least}"
    loss = known[picked.name]
    said = f"{picked.name} goes: {loss.worth_tokens:,.0f} tokens of worth, {loss.nowhere_else_tokens:,.0f} of them "
    said += "nowhere else"
    if picked.work_tokens:
        said += f", and {picked.work_tokens:,.0f} in flight"
    weighed = [each for each in others if each.name in known]
    if weighed:
        second = min(weighed, key=lambda each: _loss_key(each, known))
        would = known[second.name].nowhere_else_tokens + (second.work_tokens or 0.0)
        said += f"; {second.name} would lose {would:,.0f}"
    unknown = len(others) - len(weighed)
    if unknown:
        said += f"; {unknown} did not say what {'it holds' if unknown == 1 else 'they hold'}"
    return said
