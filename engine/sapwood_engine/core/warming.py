"""Prefixes to compute while nobody asks for anything: whose turn it is, and when one is given up.

Keeps these rules: nothing is computed here while a request waits or runs, and what is begun gives way at once to one
that comes, keeping in the tree what was computed; room is made only of what will be used less; a request's figures know
nothing of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from sapwood_contract.http import worth_after
from sapwood_engine.core.admission import Refused, max_output
from sapwood_engine.core.page_table import Opening, PageTable
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.prefix_worth import HORIZON_SECONDS
from sapwood_engine.core.request import Namespace, Request, RequestId, SamplingParams, StopRules
from sapwood_engine.core.sequence import Sequence
from sapwood_engine.core.step import PageCopy

MOST_SHARE = 0.5
"""Of the capacity that prefixes which wait may take together: more than that would turn the cache over."""
_REQUEST_ID = RequestId("")
"""No caller's: theirs have a number in them."""


@dataclass(frozen=True, slots=True)
class WarmPrefix:
    """What is to be computed."""

    namespace: Namespace
    token_ids: tuple[int, ...]
    worth_tokens: float
    """Tokens of prefill that what is lacking of it should save within `prefix_worth.HORIZON_SECONDS`."""
    parts: tuple[tuple[int, float], ...] = ()
    """As of `HotPrefix`; where there are some the worth of what is lacking is reckoned by them."""


@dataclass(frozen=True, slots=True)
class WarmCounts:
    """How far it has come, in prefixes; the last two since the start."""

    num_waiting: int = 0
    """The one that is being computed among them."""
    num_done: int = 0
    num_dropped: int = 0


@dataclass(frozen=True, slots=True)
class _Waiting:
    prefix: WarmPrefix
    until: float
    """When it is given up."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """A sequence that may run now, with its pages."""

    sequence: Sequence
    opening: Opening


@dataclass(slots=True)
class Warming:
    """The prefixes that wait, the one that runs, and what became of the others."""

    cache: PrefixCache
    capacity: Capacity
    active: Sequence | None = None
    """Never sampled from, and in nobody's queue."""
    _waiting: deque[_Waiting] = field(default_factory=deque)
    """The active one first."""
    _num_tokens: int = 0
    _num_done: int = 0
    _num_dropped: int = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def counts(self) -> WarmCounts:
        return WarmCounts(len(self._waiting), self._num_done, self._num_dropped)

    # --- what waits

    def add(self, prefixes: Iterable[WarmPrefix], now: float) -> None:
        """Let ``prefixes`` wait behind those that do, as far as they may take that much of the cache."""
        most_tokens = MOST_SHARE * self.cache.num_pages * self.cache.page_size
        for prefix in prefixes:
            num_tokens = len(prefix.token_ids)
            if self._num_tokens + num_tokens <= most_tokens:
                self._waiting.append(_Waiting(prefix, now + HORIZON_SECONDS))
                self._num_tokens += num_tokens
            else:
                self._num_dropped += 1

    def expire(self, now: float) -> None:
        """Give up those whose turn did not come while their worth was foreseen."""
        while self._waiting and self.active is None and self._waiting[0].until <= now:
            self._take("dropped")

    def clear(self) -> None:
        """Give up all that wait; the active one must have been interrupted."""
        while self._waiting:
            self._take("dropped")

    # --- whose turn it is

    def start(self, *, arrival: int, now: float) -> WarmStart | None:
        """Return the next one that needs computing and finds room; None when none is left.

        Those before it are done, if the cache holds them, or given up.
        """
        assert self.active is None, "one prefix at a time"
        while self._waiting:
            prefix = self._waiting[0].prefix
            request = Request(
                _REQUEST_ID,
                prefix.namespace,
                prefix.token_ids,
                SamplingParams(seed=0, temperature=0.0),
                StopRules(max_tokens=0),
            )
            if not self.cache.enabled or isinstance(max_output(request, self.capacity), Refused):
                self._take("dropped")
                continue
            sequence = Sequence(request, arrival=arrival, arrived_at=now, max_output=0, keys=self.cache.keys)
            if self._is_cached(sequence):
                self._take("done")
            elif (opening := self._open(sequence, prefix)) is not None:
                self.active = sequence
                return WarmStart(sequence, opening)
            else:
                self._take("dropped")
        return None

    def ended(self, how: Literal["done", "dropped", "interrupted"]) -> None:
        """The active one has ended; one that was interrupted waits again, before all others."""
        assert self.active is not None, "no prefix is being computed"
        self.active = None
        if how != "interrupted":
            self._take(how)

    def _take(self, how: Literal["done", "dropped"]) -> None:
        self._num_tokens -= len(self._waiting.popleft().prefix.token_ids)
        if how == "done":
            self._num_done += 1
        else:
            self._num_dropped += 1

    def _is_cached(self, sequence: Sequence) -> bool:
        namespace, key = sequence.request.namespace, sequence.key()
        return self.cache.peek(namespace, key, limit_tokens=sequence.num_prompt) == sequence.num_prompt

    def _open(self, sequence: Sequence, prefix: WarmPrefix) -> Opening | None:
        """Match, lock, and take pages: free ones, and those of what will be used less than what is lacking."""
        cache = self.cache
        match = cache.match(
            sequence.request.namespace, sequence.key(), limit_tokens=sequence.reusable_tokens, is_hit=False
        )
        receipt = cache.lock(match)
        needed = -(-sequence.num_prompt // cache.page_size) - len(match.pages)
        held = match.num_usable_tokens
        worth = worth_after(prefix.parts, held) if prefix.parts else prefix.worth_tokens
        if not cache.make_room(needed, most_uses=worth / max(1, sequence.num_prompt - held)):
            cache.unlock(receipt)
            return None
        own = cache.allocate(needed)
        assert isinstance(own, list), f"{needed} pages were free"
        copy = PageCopy(match.partial.page, own[0], match.partial.num_tokens) if match.partial else None
        return Opening(PageTable(cache, receipt, [*match.pages, *own], priority=0), match.num_usable_tokens, copy)
