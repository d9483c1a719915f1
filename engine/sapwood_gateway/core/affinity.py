"""Which replica a prompt costs least on: what it would have to compute there, against what that one has to do already.

All is counted in tokens to compute. The measure of a replica is::

      tokens of the prompt that it does not hold
      (twice, where as many as wanted hold the longest known beginning; not at all, where too few do)
    + request_tokens  x its requests beyond the least busy one's and `free_requests`
    + waiting_weight  x its waiting tokens beyond the shortest queue's;  all of them beyond `overload_tokens`
    + recent_weight   x its recent work (`core.recent_work`);  all of it beyond the mean and `uneven_share` of a cache
    - sticky_tokens,    where the prompt's session was before

Waiting and past work weigh little for as long as they are moderate. To compute a prefix again makes everybody wait who
comes later, while a queue passes; and most prompts are new and level out what is uneven at no price. Beyond the two
bounds they weigh in full: then even a long prefix is computed once more elsewhere, and has two holders from there on.
So a beginning that all prompts share cannot draw all of them to one replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Literal, NamedTuple

from sapwood_contract.keys import placing_weight

Reason = Literal["prefix", "sticky", "spill", "least_load"]
"""``prefix``: nobody holds more of it. ``sticky``: its session's. ``spill``: another holds more, and has too much to
do, or is not to be the only one. ``least_load``: nobody holds any of it."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What load counts against tokens saved; docs/routing.md has what they do on traces."""

    request_tokens: int = 256
    """A request that runs slows all others of its replica, about as much as so many tokens to prefill."""
    free_requests: int = 4
    """So many more than the least busy one has are no load: a batch costs hardly more than a single one."""
    waiting_weight: float = 0.02
    """Of a waiting token. With 0.1 the traces lose half a percent of their hits, with 1 seven."""
    overload_tokens: int = 131_072
    """So many more waiting tokens than the shortest queue's are too many: one very long prompt. For a replica whose
    speed is not known."""
    overload_seconds: float = 30.0
    """The same for one whose speed is known: the tokens that it computes in that time."""
    recent_weight: float = 0.01
    """Of a token of recent work. A tenth of it leaves replicas unequal, ten times as much moves prefixes for it."""
    uneven_share: float = 0.25
    """Of a cache: so much more recent work than the mean is too much."""
    sticky_tokens: int = 1_024
    """What a session's return is worth: a few turns that an index may not know of."""
    tie_tokens: int = 64
    """Where nobody holds more of a prompt than another, replicas so close to the best are as good, and the prompt's
    own hash picks one: so gateways that do not know of each other send it to the same one."""


DEFAULT_WEIGHTS = Weights()
ANY_COPIES = (1, 2**31)
"""Of a beginning: as many as come about."""
NO_SHARES: Mapping[str, float] = {}
"""All replicas count in full."""


class Candidate(NamedTuple):
    """One replica that can take the request, and all that is weighed of it: a tuple, as many are made a decision."""

    replica: str
    matched_tokens: int
    """Of the prompt, that it holds."""
    num_requests: int
    """Running and waiting."""
    waiting_tokens: int
    """Of waiting requests, that are to be computed."""
    recent_tokens: float
    overload_tokens: float
    """So many more waiting tokens than the shortest queue's are too many for it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Where the prompt goes, and why."""

    replica: str
    reason: Reason
    matched_tokens: int
    """Expected to be found there."""
    cost_tokens: float
    """Its measure, as above."""
    share: float = 1.0
    """As what part of a replica it counts (`core.slow_start`)."""


def choose(
    candidates: Sequence[Candidate],
    prompt_tokens: int,
    *,
    key: bytes,
    session_replica: str | None,
    mean_recent_tokens: float,
    cache_tokens: float,
    copies: tuple[int, int] = ANY_COPIES,
    shares: Mapping[str, float] = NO_SHARES,
    weights: Weights = DEFAULT_WEIGHTS,
) -> Decision:
    """Return the decision for one prompt; ``candidates`` are at least one, in any order.

    ``key``: `placing_key` of the prompt. ``session_replica``: where the prompt's session was last, None for no session
    or a new one. ``mean_recent_tokens``: recent work of all replicas, also of those that cannot take it;
    ``cache_tokens``: what a cache holds, on the average. ``copies``: on how many replicas the longest known beginning
    is to be kept, at least and at most. ``shares``: of replicas that count as a part of one, whose load is weighed
    already; of prompts that their keys alone place, they get so much less.
    """
    _, matches, requests_of_all, waiting_of_all, _, _ = zip(*candidates, strict=True)
    longest = max(matches)
    lacking_weight = _lacking_weight(matches.count(longest), copies)
    fewest = min(requests_of_all) + weights.free_requests
    shortest = min(waiting_of_all)
    uneven = mean_recent_tokens + weights.uneven_share * cache_tokens
    waiting_weight, recent_weight = weights.waiting_weight, weights.recent_weight
    costs: list[float] = []
    for replica, matched, requests, waiting, recent, overload_tokens in candidates:
        cost = prompt_tokens - longest + lacking_weight * (longest - matched) + waiting_weight * (waiting - shortest)
        cost += recent_weight * (recent - mean_recent_tokens)
        if requests > fewest:
            cost += weights.request_tokens * (requests - fewest)
        if waiting - shortest > overload_tokens:
            cost += waiting - shortest - overload_tokens
        if recent > uneven:
            cost += recent - uneven
        if replica == session_replica:
            cost -= weights.sticky_tokens
        costs.append(cost)
    least = min(costs)
    margin = weights.tie_tokens if key and longest == min(matches) else 0
    bound = least + margin
    tied = [number for number, cost in enumerate(costs) if cost <= bound]
    best = tied[0] if len(tied) == 1 else max(tied, key=lambda at: _rank(key, candidates[at].replica, shares))
    chosen, cost = candidates[best], costs[best]
    reason, share = _reason(chosen, longest, session_replica), shares.get(chosen.replica, 1.0)
    return Decision(chosen.replica, reason, chosen.matched_tokens, cost, share)


def _lacking_weight(num_holders: int, copies: tuple[int, int]) -> float:
    """Return what a token counts that a replica lacks of the longest known beginning, which ``num_holders`` have."""
    least, most = copies
    if num_holders < least:
        return 0.0  # the one with least to do is to have it too
    # A further copy takes the room of something else.
    return 1.0 if num_holders < most else 2.0


def placing_key(chain: Sequence[bytes], matched_blocks: int) -> bytes:
    """Return what tells a prompt from those that begin like it: its first block that no replica holds.

    ``matched_blocks``: most that any holds. Where one holds all it is the last block; without whole blocks, nothing.
    """
    return chain[min(matched_blocks, len(chain) - 1)] if chain else b""


def _rank(key: bytes, replica: str, shares: Mapping[str, float]) -> tuple[float, bytes, str]:
    """The highest random weight, as the operator reckons it too. With shares (Schindelhauer and Schomaker, 2005): when
    one grows, keys go to it and nowhere else.
    """
    digest = placing_weight(key, replica)
    weight = log((int.from_bytes(digest) + 1) / 256 ** len(digest)) / shares.get(replica, 1.0) if shares else 0.0
    return weight, digest, replica


def _reason(chosen: Candidate, longest: int, session_replica: str | None) -> Reason:
    if 0 < longest == chosen.matched_tokens:
        return "prefix"
    if chosen.replica == session_replica:
        return "sticky"
    return "spill" if longest else "least_load"
