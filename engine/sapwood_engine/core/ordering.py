"""The waiting requests: which is looked at next, under every policy, with bounded waiting.

Ranks and groups of the policy are kept in heaps whose stale entries are skipped when they come up; a rank
changes only when a request's cached prefix is looked up anew, a few requests a plan. So a plan never looks up
or sorts a long queue.

The bound, the same for all policies: a request gets a ticket when it starts to wait, the number of
admissions after which arrival order would have reached it. ``max_overtaken`` admissions past its ticket it is
overdue, and comes before all that are not; of the overdue the smallest ticket comes first. The ``sapwood``
policy has a tighter bound of its own: see `core.policies`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterator

from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.policies import Rank, policy_of
from sapwood_engine.core.sequence import Sequence


class Group:
    """Sequences of one group: those that wait, by rank, and how many wait and run."""

    __slots__ = ("heap", "key", "num_running", "num_waiting", "order", "version")

    def __init__(self, key: Hashable, order: int) -> None:
        self.key = key
        self.order = order
        """Among groups of equal weight the older comes first."""
        self.heap: list[tuple[Rank, int, int, Waiting]] = []
        self.num_waiting = 0
        self.num_running = 0
        self.version = 0
        """Entries of another version in the heap of groups are stale."""


class Waiting:
    """A sequence in the queue."""

    __slots__ = ("cached_tokens", "group", "queued", "rank", "sequence", "ticket", "version")

    def __init__(self, sequence: Sequence, *, ticket: int, cached_tokens: int, group: Group) -> None:
        self.sequence = sequence
        self.ticket = ticket
        self.cached_tokens = cached_tokens
        """Tokens that the cache held for it when last looked up."""
        self.group = group
        self.rank: Rank = ()
        self.version = 0
        """Entries of another version in the heap of its group are stale."""
        self.queued = True


class WaitingQueue:
    """The waiting requests in the order of one policy.

    An admission pass takes requests one by one (`take`), says which it admits (`started`), and ends with
    `end_pass`, which puts the others back.
    """

    def __init__(self, config: SchedulerConfig, *, first_page_tokens: int) -> None:
        self.policy = policy_of(config, first_page_tokens=first_page_tokens)
        self._max_overtaken = config.max_overtaken
        self._waiting: dict[Sequence, Waiting] = {}
        self._groups: dict[Hashable, Group] = {}
        self._by_weight: list[tuple[int, int, int, Group]] = []
        self._by_ticket: list[tuple[int, int, Waiting]] = []
        self._to_refresh: deque[Waiting] = deque()
        self._aside: list[Waiting] = []
        self._num_pushed = 0
        self._num_admissions = 0
        self.num_uncached_tokens = 0
        """Tokens of all waiting requests, but for those that the cache held when each was last looked up."""
        self.num_resuming = 0
        """Waiting requests that ran already."""
        self.num_arrivals = 0
        """Counts who began to wait."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waiting

    @property
    def num_groups(self) -> int:
        """Groups in which somebody waits or runs."""
        return len(self._groups)

    # --- coming and going

    def push(self, sequence: Sequence, *, cached_tokens: int) -> None:
        """``sequence`` waits; ``cached_tokens`` is what the cache holds for it now."""
        waiting = Waiting(
            sequence,
            ticket=self._num_admissions + len(self._waiting),
            cached_tokens=cached_tokens,
            group=self._group_of(sequence),
        )
        self._waiting[sequence] = waiting
        self.num_uncached_tokens += len(sequence.tokens) - cached_tokens
        self.num_resuming += sequence.num_cached is not None
        self.num_arrivals += 1
        if len(self._by_ticket) > self._most_entries:
            self._by_ticket = [entry for entry in self._by_ticket if entry[2].queued]
            heapq.heapify(self._by_ticket)
        heapq.heappush(self._by_ticket, (waiting.ticket, self._next_number(), waiting))
        if self.policy.uses_cache:
            if len(self._to_refresh) > self._most_entries:
                self._to_refresh = deque(each for each in self._to_refresh if each.queued)
            self._to_refresh.append(waiting)
        waiting.rank = self.policy.rank(waiting.sequence, waiting.cached_tokens)
        self._push_rank(waiting)
        waiting.group.num_waiting += 1
        self._reweigh(waiting.group)

    def remove(self, sequence: Sequence) -> None:
        """``sequence`` does not wait any more (admitted, aborted or displaced)."""
        waiting = self._waiting.pop(sequence)
        waiting.queued = False
        waiting.version += 1
        self.num_uncached_tokens -= len(sequence.tokens) - waiting.cached_tokens
        self.num_resuming -= sequence.num_cached is not None
        waiting.group.num_waiting -= 1
        self._reweigh(waiting.group)

    def started(self, sequence: Sequence) -> None:
        """``sequence`` is admitted: `remove` it and count the admission. It runs until `stopped`."""
        self._waiting[sequence].group.num_running += 1
        self.remove(sequence)
        self._num_admissions += 1

    def entered(self, sequence: Sequence) -> None:
        """``sequence`` runs from now on without having waited here, until `stopped`."""
        self._group_of(sequence).num_running += 1

    def stopped(self, sequence: Sequence) -> None:
        """``sequence`` runs no longer."""
        group = self._group_of(sequence)
        group.num_running -= 1
        self._reweigh(group)

    def refresh(self, look_up: Callable[[Sequence], int], *, count: int) -> None:
        """Renew the cached tokens of the ``count`` requests that were looked up longest ago."""
        for _ in range(min(count, len(self._to_refresh))):
            waiting = self._to_refresh.popleft()
            if not waiting.queued:
                continue
            self._to_refresh.append(waiting)
            self.note_cached(waiting.sequence, look_up(waiting.sequence))
            rank = self.policy.rank(waiting.sequence, waiting.cached_tokens)
            if rank != waiting.rank:
                waiting.rank = rank
                waiting.version += 1
                self._push_rank(waiting)

    def note_cached(self, sequence: Sequence, cached_tokens: int) -> None:
        """The cache was looked at for ``sequence``, which waits; its rank is renewed by `refresh` alone."""
        waiting = self._waiting[sequence]
        self.num_uncached_tokens += waiting.cached_tokens - cached_tokens
        waiting.cached_tokens = cached_tokens

    def worst(self) -> Sequence | None:
        """Return who is displaced first: of the lowest priority the newest; resuming requests are not."""
        fresh = [sequence for sequence in self._waiting if sequence.num_cached is None]
        return max(fresh, key=lambda s: (-s.request.priority, s.arrival), default=None)

    # --- an admission pass

    def take(self) -> tuple[Sequence, bool] | None:
        """Return the next request to look at and whether it is overdue; None when all have been looked at.

        Nothing is taken after an overdue request that was looked at and not admitted.
        """
        while self._by_ticket and not self._by_ticket[0][2].queued:
            heapq.heappop(self._by_ticket)
        if self._by_ticket and self._is_overdue(first := self._by_ticket[0][2]):
            if first in self._aside:
                return None
            self._set_aside(first)
            return first.sequence, True
        while self._by_weight:
            _, _, version, group = self._by_weight[0]
            while version == group.version and group.heap:
                _, _, rank_version, waiting = heapq.heappop(group.heap)
                if rank_version == waiting.version:
                    self._set_aside(waiting)
                    return waiting.sequence, False
            heapq.heappop(self._by_weight)
        return None

    def end_pass(self) -> None:
        """Put back what was taken and still waits."""
        aside, self._aside = self._aside, []
        for waiting in aside:
            if waiting.queued:
                self._push_rank(waiting)
                self._reweigh(waiting.group)

    def _is_overdue(self, waiting: Waiting) -> bool:
        return self._num_admissions >= waiting.ticket + self._max_overtaken

    def _set_aside(self, waiting: Waiting) -> None:
        waiting.version += 1
        self._aside.append(waiting)

    # --- heaps

    @property
    def _most_entries(self) -> int:
        """A heap with more entries than this has mostly stale ones and is swept."""
        return 2 * len(self._waiting) + 64

    def _next_number(self) -> int:
        """Ties in a heap are settled by the order of pushing."""
        self._num_pushed += 1
        return self._num_pushed

    def _push_rank(self, waiting: Waiting) -> None:
        heap = waiting.group.heap
        if len(heap) > self._most_entries:
            heap[:] = [entry for entry in heap if entry[2] == entry[3].version]
            heapq.heapify(heap)
        heapq.heappush(heap, (waiting.rank, self._next_number(), waiting.version, waiting))

    def _group_of(self, sequence: Sequence) -> Group:
        key = self.policy.group(sequence) if self.policy.group else None
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, self._next_number())
        return group

    def _reweigh(self, group: Group) -> None:
        """Enter ``group`` anew with the weight that it has now; forget it when nobody is left in it."""
        group.version += 1
        if not group.num_waiting:
            if not group.num_running:
                del self._groups[group.key]
            return
        weight = 0
        if self.policy.weight != "none":
            weight = group.num_waiting if self.policy.weight == "waiting" else group.num_running
        if len(self._by_weight) > self._most_entries:
            self._by_weight = [entry for entry in self._by_weight if entry[2] == entry[3].version]
            heapq.heapify(self._by_weight)
        heapq.heappush(self._by_weight, (-weight, group.order, group.version, group))
