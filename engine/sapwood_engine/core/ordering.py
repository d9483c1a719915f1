"""Which waiting request is looked at next, under every policy, with bounded waiting.

A policy is a rank within a group and, for two of them, an order of groups. Ranks are kept in heaps and
change only when a request's cached prefix is looked up anew, a few requests a plan, so a plan never looks
up or sorts a long queue.

The bound, the same for all policies: a request gets a ticket when it starts to wait, the number of
admissions after which arrival order would have reached it. ``max_overtaken`` admissions past its ticket the
oldest request is overdue and comes first. Tickets grow with arrival, so watching the oldest is enough. The
``sapwood`` policy has a tighter one of its own: see `_sapwood_rank`.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Literal

from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.sequence import Sequence

_MASK_64 = (1 << 64) - 1

Rank = tuple[float, ...] | tuple[bytes, float]
"""Smaller is earlier; compared within one policy only."""


class Waiting:
    """A sequence in the queue."""

    __slots__ = ("cached_tokens", "group", "queued", "rank", "sequence", "ticket", "version")

    def __init__(self, sequence: Sequence, *, ticket: int, cached_tokens: int, group: Hashable) -> None:
        self.sequence = sequence
        self.ticket = ticket
        self.cached_tokens = cached_tokens
        """Tokens that the cache held for it when last looked up."""
        self.group = group
        self.rank: Rank = ()
        self.version = 0
        """Heap entries of another version are stale."""
        self.queued = True


@dataclass(frozen=True, slots=True)
class Policy:
    """How one policy orders."""

    rank: Callable[[Waiting], Rank]
    group: Callable[[Sequence], Hashable] | None = None
    """None: there is one group."""
    weight: Literal["none", "waiting", "running"] = "none"
    """The group with most waiting or most running requests comes first."""
    uses_cache: bool = False
    """The rank depends on the cached tokens."""
    uses_priority: bool = False
    """A full queue displaces, and short KV sends back, the lowest priority first."""
    preempts: bool = False
    """A waiting request sends running ones of lower priority back."""


def policy_of(config: SchedulerConfig, *, page_size: int) -> Policy:
    """Return the policy that ``config`` names."""
    match config.policy:
        case "fcfs":
            return Policy(lambda w: (w.sequence.arrival,))
        case "lpm":
            return Policy(lambda w: (-w.cached_tokens, w.sequence.arrival), uses_cache=True)
        case "dfs-weight":
            # The trie of the waiting prompts: the heaviest subtree first, then depth first, which is the
            # lexical order of keys. Weights are taken at the first page only: that is where prompts of
            # different origin part.
            return Policy(
                lambda w: (w.sequence.key(), w.sequence.arrival),
                group=lambda sequence: (sequence.request.namespace, sequence.key(page_size)),
                weight="waiting",
            )
        case "lof":
            return Policy(lambda w: (-w.sequence.max_output, w.sequence.arrival))
        case "random":
            return Policy(lambda w: (_mix(config.seed, w.sequence.arrival),))
        case "routing-key":
            return Policy(
                lambda w: (w.sequence.arrival,),
                group=lambda sequence: sequence.request.routing_key,
                weight="running",
            )
        case "priority":
            return Policy(
                lambda w: (-w.sequence.request.priority, w.sequence.arrival),
                uses_priority=True,
                preempts=True,
            )
        case "sapwood":
            return Policy(lambda w: _sapwood_rank(w, config), uses_cache=True, uses_priority=True)


def _sapwood_rank(waiting: Waiting, config: SchedulerConfig) -> Rank:
    """Seconds: arrival, less what a cache hit is worth, less one TTFT target a level of priority.

    A hit of n tokens is worth ``target * n / (n + max_step_tokens)``, less than one target however long it
    is. So a request is never overtaken by one of its priority that arrived a target later. As all requests
    age at the same rate, waiting does not change their order, and a rank needs no renewal with time.
    """
    sequence = waiting.sequence
    hit = waiting.cached_tokens / (waiting.cached_tokens + config.max_step_tokens)
    bonus = config.ttft_target_seconds * (hit + sequence.request.priority)
    return (sequence.arrived_at - bonus, sequence.arrival)


def _mix(seed: int, index: int) -> int:
    """Return 64 bits that look random: the finalizer of MurmurHash3 (Appleby, public domain)."""
    bits = (seed * 0x9E3779B97F4A7C15 + index + 1) & _MASK_64
    bits = ((bits ^ (bits >> 33)) * 0xFF51AFD7ED558CCD) & _MASK_64
    bits = ((bits ^ (bits >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK_64
    return bits ^ (bits >> 33)


class WaitingQueue:
    """The waiting requests in the order of one policy.

    An admission pass takes requests one by one (`take`), tells which were `admitted`, and ends with
    `end_pass`, which puts the others back.
    """

    def __init__(self, config: SchedulerConfig, *, page_size: int) -> None:
        self.policy = policy_of(config, page_size=page_size)
        self._max_overtaken = config.max_overtaken
        self._waiting: dict[Sequence, Waiting] = {}
        self._heaps: dict[Hashable, list[tuple[Rank, int, int, Waiting]]] = {}
        self._oldest: list[tuple[int, int, Waiting]] = []
        self._num_pushed = 0
        self._aside: list[Waiting] = []
        self._group_order: deque[Hashable] = deque()
        self._to_refresh: deque[Waiting] = deque()
        self._group_weights: Counter[Hashable] = Counter()
        self._num_admissions = 0
        self.num_tokens = 0
        """Tokens of all waiting requests."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waiting

    def push(self, sequence: Sequence, *, cached_tokens: int) -> None:
        """``sequence`` waits; ``cached_tokens`` is what the cache holds for it now."""
        waiting = Waiting(
            sequence,
            ticket=self._num_admissions + len(self._waiting),
            cached_tokens=cached_tokens,
            group=self._group_of(sequence),
        )
        self._waiting[sequence] = waiting
        self.num_tokens += len(sequence.tokens)
        self._num_pushed += 1
        if len(self._oldest) > 2 * len(self._waiting) + 64:
            self._oldest = [entry for entry in self._oldest if entry[2].queued]
            heapq.heapify(self._oldest)
        heapq.heappush(self._oldest, (sequence.arrival, self._num_pushed, waiting))
        waiting.rank = self.policy.rank(waiting)
        self._push_rank(waiting)
        if self.policy.uses_cache:
            if len(self._to_refresh) > 2 * len(self._waiting) + 64:
                self._to_refresh = deque(each for each in self._to_refresh if each.queued)
            self._to_refresh.append(waiting)
        if self.policy.weight == "waiting":
            self._group_weights[waiting.group] += 1

    def remove(self, sequence: Sequence) -> None:
        """``sequence`` does not wait any more (admitted, aborted or displaced)."""
        waiting = self._waiting.pop(sequence)
        waiting.queued = False
        waiting.version += 1
        self.num_tokens -= len(sequence.tokens)
        if self.policy.weight == "waiting":
            self._lighten(waiting.group)

    def started(self, sequence: Sequence) -> None:
        """``sequence`` is admitted: `remove` it and count the admission. It runs until `stopped`."""
        self.remove(sequence)
        self._num_admissions += 1
        if self.policy.weight == "running":
            self._group_weights[self._group_of(sequence)] += 1

    def stopped(self, sequence: Sequence) -> None:
        """``sequence`` runs no longer."""
        if self.policy.weight == "running":
            self._lighten(self._group_of(sequence))

    def refresh(self, look_up: Callable[[Sequence], int], *, count: int) -> None:
        """Renew the cached tokens of the ``count`` requests that were looked up longest ago."""
        for _ in range(min(count, len(self._to_refresh))):
            waiting = self._to_refresh.popleft()
            if not waiting.queued:
                continue
            self._to_refresh.append(waiting)
            waiting.cached_tokens = look_up(waiting.sequence)
            rank = self.policy.rank(waiting)
            if rank != waiting.rank:
                waiting.rank = rank
                waiting.version += 1
                self._push_rank(waiting)

    def begin_pass(self) -> None:
        """Fix the order of the groups for this pass."""
        weights = self._group_weights
        self._group_order = deque(sorted(self._heaps, key=lambda g: (-weights[g], self._heaps[g][0])))

    def take(self) -> tuple[Sequence, bool] | None:
        """Return the next request to look at and whether it is overdue; None when all have been looked at."""
        while self._oldest and not self._oldest[0][2].queued:
            heapq.heappop(self._oldest)
        if self._oldest and self._is_overdue(oldest := self._oldest[0][2]):
            if oldest in self._aside:
                return None
            self._set_aside(oldest)
            return oldest.sequence, True
        while self._group_order:
            group = self._group_order[0]
            heap = self._heaps[group]
            while heap:
                _, _, version, waiting = heapq.heappop(heap)
                if version == waiting.version:
                    self._set_aside(waiting)
                    return waiting.sequence, False
            del self._heaps[group]
            self._group_order.popleft()
        return None

    def end_pass(self) -> None:
        """Put back what was taken and still waits."""
        aside, self._aside = self._aside, []
        for waiting in aside:
            if waiting.queued:
                self._push_rank(waiting)
        for group in self._group_order:
            if not self._heaps[group]:
                del self._heaps[group]

    def worst(self) -> Sequence | None:
        """Return who is displaced first: of the lowest priority the newest; resuming requests are not."""
        fresh = [sequence for sequence in self._waiting if sequence.num_cached is None]
        return max(fresh, key=lambda s: (-s.request.priority, s.arrival), default=None)

    def _group_of(self, sequence: Sequence) -> Hashable:
        return self.policy.group(sequence) if self.policy.group else None

    def _is_overdue(self, waiting: Waiting) -> bool:
        return self._num_admissions >= waiting.ticket + self._max_overtaken

    def _lighten(self, group: Hashable) -> None:
        self._group_weights[group] -= 1
        if not self._group_weights[group]:
            del self._group_weights[group]

    def _set_aside(self, waiting: Waiting) -> None:
        waiting.version += 1
        self._aside.append(waiting)

    def _push_rank(self, waiting: Waiting) -> None:
        heap = self._heaps.setdefault(waiting.group, [])
        if len(heap) > 2 * len(self._waiting) + 64:
            heap[:] = [entry for entry in heap if entry[2] == entry[3].version]
            heapq.heapify(heap)
        self._num_pushed += 1
        heapq.heappush(heap, (waiting.rank, self._num_pushed, waiting.version, waiting))
