"""The policies: in which order waiting requests are looked at.

A policy is a rank within a group and, for two of them, an order of groups. Ranks and groups are functions
of the request and of what the cache holds of it, never of the time: see `_sapwood_rank` for how it ages
nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.sequence import Sequence

_MASK_64 = (1 << 64) - 1

Rank = tuple[float, ...] | tuple[bytes, float]
"""Smaller is earlier; compared within one policy only."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How one policy orders."""

    rank: Callable[[Sequence, int], Rank]
    """Of a sequence for which the cache holds so many tokens."""
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


def policy_of(config: SchedulerConfig, *, first_page_tokens: int) -> Policy:
    """Return the policy that ``config`` names; ``first_page_tokens``: how many make the first page of a key."""
    match config.policy:
        case "fcfs":
            return Policy(lambda s, _: (s.arrival,))
        case "lpm":
            return Policy(lambda s, cached: (-cached, s.arrival), uses_cache=True)
        case "dfs-weight":
            # The trie of the waiting prompts: the heaviest subtree first, then depth first, which is the
            # lexical order of keys. Weights are taken at the first page only: that is where prompts of
            # different origin part.
            return Policy(
                lambda s, _: (s.key(), s.arrival),
                group=lambda s: (s.request.namespace, s.key(min(first_page_tokens, s.num_prompt))),
                weight="waiting",
            )
        case "lof":
            return Policy(lambda s, _: (-s.max_output, s.arrival))
        case "random":
            return Policy(lambda s, _: (_mix(config.seed, s.arrival),))
        case "routing-key":
            return Policy(
                lambda s, _: (s.arrival,),
                group=lambda s: s.request.routing_key,
                weight="running",
            )
        case "priority":
            return Policy(
                lambda s, _: (-s.request.priority, s.arrival),
                uses_priority=True,
                preempts=True,
            )
        case "sapwood":
            return Policy(lambda s, cached: _sapwood_rank(s, cached, config), uses_cache=True, uses_priority=True)


def _sapwood_rank(sequence: Sequence, cached_tokens: int, config: SchedulerConfig) -> Rank:
    """Seconds: arrival, less what a cache hit is worth, less one TTFT target a level of priority.

    A hit of n tokens is worth ``target * n / (n + max_step_tokens)``, less than one target however long it
    is. So a request is never overtaken by one of its priority that arrived a target later. As all requests
    age at the same rate, waiting does not change their order, and a rank needs no renewal with time.
    """
    hit = cached_tokens / (cached_tokens + config.max_step_tokens)
    bonus = config.ttft_target_seconds * (hit + sequence.request.priority)
    return (sequence.arrived_at - bonus, sequence.arrival)


def _mix(seed: int, index: int) -> int:
    """Return 64 bits that look random: the finalizer of MurmurHash3 (Appleby, public domain)."""
    bits = (seed * 0x9E3779B97F4A7C15 + index + 1) & _MASK_64
    bits = ((bits ^ (bits >> 33)) * 0xFF51AFD7ED558CCD) & _MASK_64
    bits = ((bits ^ (bits >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK_64
    return bits ^ (bits >> 33)
