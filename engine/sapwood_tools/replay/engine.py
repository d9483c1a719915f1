"""An engine in virtual time: the real prefix cache, one prompt computed after the other, answers beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sapwood_engine.core.block_log import BlockEvent
from sapwood_engine.core.prefix_cache import PrefixCache, Shortfall
from sapwood_tools.replay.trace import NAMESPACE, PAGE_SIZE, SCALE, TraceRequest


class CacheTooSmall(ValueError):
    """A prompt of the trace is longer than a whole cache."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast every engine is; a trace does not say."""

    prefill_tokens_per_second: float
    token_seconds: float
    """Between two tokens of an answer."""


@dataclass(frozen=True, slots=True)
class Served:
    """What became of a request; tokens of the trace."""

    cached_tokens: int
    first_token_at: float
    done_at: float
    events: Sequence[BlockEvent]
    """What its prompt changed in the cache."""


class VirtualEngine:
    """Prompts wait in one line; what one leaves in the cache is there for the next one in it.

    So a prompt meets the cache as those before it leave it, which is known as soon as it joins the line.
    """

    def __init__(self, capacity_blocks: int, speed: Speed) -> None:
        self._cache = PrefixCache(num_pages=capacity_blocks, page_size=PAGE_SIZE, log_blocks=True)
        self._speed = speed
        self._idle_from = 0.0
        self.num_requests = 0
        """Sent to it and not `ended`."""

    def waiting_tokens(self, now: float) -> int:
        """Return what is to be computed of the prompts in line at ``now``."""
        return int(max(0.0, self._idle_from - now) * self._speed.prefill_tokens_per_second)

    def serve(self, request: TraceRequest, now: float) -> Served:
        """Take ``request`` at ``now``, not before those taken already. `CacheTooSmall` where it can never fit."""
        cached = self._cached_tokens(request)
        computed = request.prompt.num_tokens - cached
        self._idle_from = max(self._idle_from, now) + computed / self._speed.prefill_tokens_per_second
        self.num_requests += 1
        done_at = self._idle_from + request.output_tokens * self._speed.token_seconds
        return Served(cached, self._idle_from, done_at, self._cache.take_block_events())

    def ended(self) -> None:
        """One of its requests is done."""
        self.num_requests -= 1

    def _cached_tokens(self, request: TraceRequest) -> int:
        """Compute the prompt; return how many tokens of the trace were there."""
        num_slots = len(request.key) // self._cache.keys.unit_bytes
        found = through_cache(self._cache, request)
        # The last slot may stand for fewer tokens than the others, and is the one that is always computed.
        return request.prompt.num_tokens - 1 if found == num_slots - 1 else found * SCALE


def through_cache(cache: PrefixCache, request: TraceRequest) -> int:
    """Let the prompt of ``request`` be computed and leave its pages in ``cache``; return how many slots were there.

    Raises `CacheTooSmall` where it can never fit.
    """
    num_slots = len(request.key) // cache.keys.unit_bytes
    found = cache.match(NAMESPACE, request.key, limit_tokens=num_slots - 1)
    receipt = cache.lock(found)
    own = cache.allocate(len(request.blocks) - len(found.pages))
    if isinstance(own, Shortfall):
        num_tokens = request.prompt.num_tokens
        raise CacheTooSmall(f"a prompt of {num_tokens} tokens does not fit into {cache.num_pages} blocks")
    cache.release(cache.finish(receipt, request.key, (*found.pages, *own)))
    cache.take_evicted()
    return found.num_usable_tokens
