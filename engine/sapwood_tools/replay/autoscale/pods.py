"""A replica in virtual time: the real prefix cache and its miss-ratio curve, and what a scrape would read of it.

Prompts wait in one line and are computed one after the other; answers run beside. So what becomes of a request is known
as soon as it joins the line, and what is counted of it is counted when its time has come.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sapwood_contract.curve import Curve, CurvePoint
from sapwood_contract.metrics import SERIES
from sapwood_engine.core.block_log import BlockEvent, BlocksRemoved
from sapwood_engine.core.miss_ratio import MissRatio
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_operator.autoscaling.values import Stage
from sapwood_tools.replay.autoscale.pace import Pace
from sapwood_tools.replay.engine import through_cache
from sapwood_tools.replay.trace import BLOCK_TOKENS, NAMESPACE, PAGE_SIZE, SCALE, TraceRequest

_BORDERS = {each.name: each.buckets for each in SERIES}
TTFT_BORDERS = _BORDERS["sapwood_time_to_first_token_seconds"]
"""Seconds; the last counts are of what is longer."""


class Served(NamedTuple):
    """What becomes of a request: a tuple, as there is one a request; tokens of the trace."""

    cached_tokens: int
    first_token_at: float
    done_at: float
    events: Sequence[BlockEvent]
    """What its prompt changes in the cache."""


class Counts(NamedTuple):
    """What a pod's counters stand at."""

    at: float
    arrivals: int
    prompt_tokens: int
    """Of prompts whose computation began."""
    cached_tokens: int
    evicted_tokens: int
    decode_seconds: float
    """Of all answers together: one that runs for a second beside another makes two."""
    prefill_seconds: float
    waiting_seconds: float
    """Of all prompts together, before their computation began."""
    ttft: tuple[int, ...]
    """By `TTFT_BORDERS`."""
    num_admitted: int
    """Prompts whose computation began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What every pod of a replay is like."""

    capacity_blocks: int
    pace: Pace
    mrc_sample_rate: float = 0.05
    """As an engine's default."""


class VirtualPod:
    """One replica from the moment that it is asked for; ``stage`` and ``stage_since`` are its owner's to set."""

    def __init__(self, name: str, settings: PodSettings, now: float, *, stage: Stage) -> None:
        self.name = name
        self.stage: Stage = stage
        self.stage_since = now
        self.created_at = now
        self.num_requests = 0
        """Sent to it and not `ended`."""
        self.pinned_tokens = 0
        """Of prompts whose answers run, and of these answers."""
        self.history: deque[Counts] = deque()
        """Whoever scrapes keeps here what was read."""
        # Blocks are found whole or not at all: what a trace says of a block that is filled in part is that it is new.
        self.cache = PrefixCache(
            num_pages=settings.capacity_blocks, page_size=PAGE_SIZE, partial_pages=False, log_blocks=True
        )
        self.capacity_tokens = settings.capacity_blocks * BLOCK_TOKENS
        self.pace = settings.pace
        self._miss_ratio = MissRatio(
            num_pages=settings.capacity_blocks,
            page_size=PAGE_SIZE,
            token_bytes=self.cache.keys.unit_bytes,
            sample_rate=settings.mrc_sample_rate,
            partial_pages=False,
        )
        self._capacities: list[float | None] = []
        """Of its curve's points, in tokens of the trace; none while there is no curve."""
        self._idle_from = now
        self._given: deque[TraceRequest] = deque()
        """Prefixes that it computes while it has nothing else to do."""
        self._starts: deque[tuple[float, float, int, int]] = deque()
        """When a prompt's computation begins, how long it waits for that, its tokens, and those cached."""
        self._firsts: deque[tuple[float, float]] = deque()
        """When a first token comes, and how long after it was sent for."""
        self._decoding = 0
        self._decoding_since = now
        self._arrivals = self._prompt_tokens = self._cached_tokens = self._evicted_tokens = 0
        self._decode_seconds = self._prefill_seconds = self._waiting_seconds = 0.0
        self._num_admitted = 0
        self._ttft = [0] * (len(TTFT_BORDERS) + 1)

    # --- requests

    def serve(self, request: TraceRequest, now: float) -> Served:
        """Take ``request`` at ``now``, not before those taken already.

        Raises `sapwood_tools.replay.engine.CacheTooSmall` where it can never fit.
        """
        cache, num_tokens = self.cache, request.prompt.num_tokens
        if self._given:
            self._compute_given(now)
        cache.note_time(now)
        num_slots = len(request.key) // cache.keys.unit_bytes
        found = through_cache(cache, request)
        trail = self._miss_ratio.admitted(
            NAMESPACE, request.key, num_tokens=num_slots, num_cached=found, most_cached=num_slots - 1
        )
        # A trace's answers are not kept, so to use the prompt once more at its end would change nothing else.
        if trail.use is not None:
            trail.use.is_running = False
        # The last slot may stand for fewer tokens than the others, and is the one that is always computed.
        cached = num_tokens - 1 if found == num_slots - 1 else found * SCALE
        events = cache.take_block_events()
        self._evicted_tokens += BLOCK_TOKENS * sum(
            len(event.hashes) for event in events if isinstance(event, BlocksRemoved)
        )
        return Served(cached, *self._queue(request, cached, now), events)

    def _queue(self, request: TraceRequest, cached: int, now: float) -> tuple[float, float]:
        """Return when its first token and its last one come."""
        num_tokens = request.prompt.num_tokens
        seconds = self.pace.prefill_seconds(num_tokens, cached)
        start = self._idle_from if self._idle_from > now else now
        first = self._idle_from = start + seconds
        self._arrivals += 1
        self.num_requests += 1
        self._prefill_seconds += seconds
        self._starts.append((start, start - now, num_tokens, cached))
        self._firsts.append((first, first - now))
        return first, first + request.output_tokens * self.pace.token_seconds(self.num_requests)

    def began(self, request: TraceRequest, now: float) -> None:
        """The answer to one of its requests begins."""
        self._decode_until(now)
        self._decoding += 1
        self.pinned_tokens += request.prompt.num_tokens + request.output_tokens

    def ended(self, request: TraceRequest, now: float) -> None:
        """One of its answers is done."""
        self._decode_until(now)
        self._decoding -= 1
        self.num_requests -= 1
        self.pinned_tokens -= request.prompt.num_tokens + request.output_tokens

    def warm(self, prefixes: Sequence[TraceRequest], now: float) -> float:
        """Compute ``prefixes``, counted as nobody's requests; return when that is done."""
        self._idle_from = max(self._idle_from, now)
        for prefix in prefixes:
            self._idle_from += self._compute(prefix)
        return self._idle_from

    def give(self, prefixes: Sequence[TraceRequest]) -> None:
        """Have it compute ``prefixes`` while it has nothing else to do."""
        self._given.extend(prefixes)

    def _compute_given(self, now: float) -> None:
        """It had nothing else to do since the last prompt in line: what could be done in that time is done."""
        while self._given and self._idle_from < now:
            self._idle_from += self._compute(self._given.popleft())

    def _compute(self, prefix: TraceRequest) -> float:
        """Return how long it takes."""
        found = through_cache(self.cache, prefix)
        return self.pace.prefill_seconds(prefix.prompt.num_tokens, found * SCALE)

    def _decode_until(self, now: float) -> None:
        self._decode_seconds += self._decoding * (now - self._decoding_since)
        self._decoding_since = now

    # --- what it says

    def waiting_tokens(self, now: float) -> int:
        """Return what is to be computed of the prompts in line at ``now``."""
        left = self._idle_from - now
        return int(left * self.pace.prefill_tokens_per_second) if left > 0 else 0

    def counts(self, now: float) -> Counts:
        """Return where its counters stand at ``now``, not before what was asked last."""
        self._decode_until(now)
        while self._starts and self._starts[0][0] <= now:
            _, waited, prompt, cached = self._starts.popleft()
            self._prompt_tokens += prompt
            self._cached_tokens += cached
            self._waiting_seconds += waited
            self._num_admitted += 1
        while self._firsts and self._firsts[0][0] <= now:
            self._ttft[bisect_left(TTFT_BORDERS, self._firsts.popleft()[1])] += 1
        return Counts(
            now,
            self._arrivals,
            self._prompt_tokens,
            self._cached_tokens,
            self._evicted_tokens,
            self._decode_seconds,
            self._prefill_seconds - max(0.0, self._idle_from - now),
            self._waiting_seconds + sum(waits - (start - now) for start, waits, _, _ in self._starts),
            tuple(self._ttft),
            self._num_admitted,
        )

    def curve(self) -> Curve:
        """Return the miss-ratio curve as its engine would tell it, in tokens of the trace."""
        curve = self._miss_ratio.curve()
        if not self._capacities:
            self._capacities = [None if (had := each.capacity_tokens) is None else had * SCALE for each in curve.points]
        ratios = [each.hit_ratio for each in curve.points]
        points = tuple(map(CurvePoint, self._capacities, ratios)) if ratios else ()
        return Curve(
            curve.enabled,
            curve.sample_rate,
            curve.num_samples,
            self.capacity_tokens,
            points,
            curve.working_set_tokens * SCALE,
            curve.regret_tokens * SCALE,
        )
