"""The policy ``PrefixAffinity`` of one service: what it remembers between requests, and decisions made of that.

::

    decision = policy.decide(prompt, loads)     # changes nothing
    policy.sent(prompt, decision)               # it is on its way
    policy.began(prompt, decision, seconds)     # an idle replica's answer began so long after that
    policy.computed(prompt, decision)           # its answer begins, or there will be none
    policy.answered(decision.replica, tokens)   # and this long it was
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sapwood_gateway.core.affinity import (
    ANY_COPIES,
    DEFAULT_WEIGHTS,
    NO_SHARES,
    Candidate,
    Decision,
    Weights,
    choose,
    placing_key,
)
from sapwood_gateway.core.hot_prefixes import HotPrefixes
from sapwood_gateway.core.in_flight import InFlight
from sapwood_gateway.core.prefill_speed import PrefillSpeed
from sapwood_gateway.core.prefix_index import PrefixIndex
from sapwood_gateway.core.recent_work import RecentWork
from sapwood_gateway.core.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as it is routed."""

    num_tokens: int
    chain: Sequence[bytes]
    """Hashes of its whole blocks."""
    session: str | None = None
    """`sessions.session_key` of what the request gives."""


class Load(NamedTuple):
    """A replica that can take the request, and what it has to do: a tuple, as many are made a decision."""

    replica: str
    num_requests: int
    waiting_tokens: int


class PrefixAffinity:
    """Index, recent work and sessions of one service's replicas; ``block_tokens`` are in a block."""

    def __init__(self, block_tokens: int, weights: Weights = DEFAULT_WEIGHTS) -> None:
        self.block_tokens = block_tokens
        self.index = PrefixIndex()
        """For feeds of events; replicas join and leave by `join` and `leave` below."""
        self._weights = weights
        self._recent = RecentWork()
        self._hot = HotPrefixes()
        self._speeds: dict[str, PrefillSpeed] = {}
        self._overload_tokens: dict[str, float] = {}
        """Of replicas whose speed is known."""
        self._sessions = Sessions()
        self._in_flight = InFlight()
        """Of replicas that publish events; all others' blocks are guessed from what they are sent."""

    def join(self, replica: str, capacity_blocks: int, *, publishes_events: bool) -> None:
        """Know ``replica``; one that publishes its blocks is told of by a feed, of another they are guessed.

        As much memory as ``capacity_blocks`` take may be used: the caller says how much of an engine's word to believe.
        """
        self.index.join(replica, capacity_blocks)
        self._recent.join(replica, capacity_blocks * self.block_tokens)
        if publishes_events:
            self._in_flight.join(replica)

    def level(self, replica: str) -> None:
        """``replica`` takes prompts for the first time or again: it has nothing to catch up on with the others."""
        self._recent.level(replica)

    def leave(self, replica: str) -> None:
        """Forget ``replica``, if it is known."""
        self.index.leave(replica)
        self._recent.leave(replica)
        self._speeds.pop(replica, None)
        self._overload_tokens.pop(replica, None)
        self._in_flight.leave(replica)

    def decide(
        self,
        prompt: Prompt,
        loads: Sequence[Load],
        *,
        hot_replicas: tuple[int, int] = ANY_COPIES,
        shares: Mapping[str, float] = NO_SHARES,
    ) -> Decision:
        """Return which of ``loads`` takes ``prompt``; there is at least one, and all have joined.

        What others hold draws nothing. ``hot_replicas``: on how many at least a beginning is kept that many prompts
        have, and on how many at most any. ``shares``: as of `affinity.choose`.
        """
        matched = self._matched(prompt.chain)
        recent, block_tokens = self._recent.tokens, self.block_tokens
        if len(loads) < len(recent):
            matched = {load.replica: matched[load.replica] for load in loads if load.replica in matched}
        num_known = max(matched.values(), default=0)
        is_hot = num_known > 0 and self._hot.is_hot(prompt.chain[num_known - 1])
        overload_tokens, any_overload = self._overload_tokens, self._weights.overload_tokens
        # The last token is computed in any case: its logits are wanted.
        most = max(0, prompt.num_tokens - 1)
        candidates = [
            Candidate(
                replica,
                found if (found := matched.get(replica, 0) * block_tokens) < most else most,
                num_requests,
                waiting_tokens,
                recent[replica],
                overload_tokens.get(replica, any_overload),
            )
            for replica, num_requests, waiting_tokens in loads
        ]
        return choose(
            candidates,
            prompt.num_tokens,
            key=placing_key(prompt.chain, num_known),
            session_replica=self._sessions.replica_of(prompt.session),
            mean_recent_tokens=self._recent.mean,
            cache_tokens=self._recent.mean_capacity,
            copies=hot_replicas if is_hot else (1, hot_replicas[1]),
            shares=shares,
            weights=self._weights,
        )

    def sent(self, prompt: Prompt, decision: Decision) -> None:
        """``prompt`` is on its way to where ``decision`` says, a replica that is known."""
        self._recent.add(decision.replica, (prompt.num_tokens - decision.matched_tokens) / decision.share)
        if num_known := min(decision.matched_tokens // self.block_tokens, len(prompt.chain)):
            self._hot.note(prompt.chain[num_known - 1])
        self._sessions.note(prompt.session, decision.replica)
        if decision.replica in self._in_flight:
            self._in_flight.begin(decision.replica, prompt.chain)
        else:
            self.index.store(decision.replica, prompt.chain)

    def began(self, prompt: Prompt, decision: Decision, seconds: float) -> None:
        """The first token came so long after ``prompt`` was sent, to a replica that had nothing else to do."""
        speed = self._speeds.setdefault(decision.replica, PrefillSpeed())
        speed.note(prompt.num_tokens - decision.matched_tokens, seconds)
        if (known := speed.tokens_per_second) is not None:
            self._overload_tokens[decision.replica] = known * self._weights.overload_seconds

    def computed(self, prompt: Prompt, decision: Decision) -> None:
        """The replica has computed ``prompt`` and told of it, or will not; once for each that was `sent`."""
        self._in_flight.end(decision.replica, prompt.chain)

    def answered(self, replica: str, num_tokens: float) -> None:
        """``replica`` has computed an answer of ``num_tokens``: more, where it counts as a part of a replica."""
        self._recent.add(replica, num_tokens)

    def _matched(self, chain: Sequence[bytes]) -> dict[str, int]:
        return self._in_flight.matched(chain, self.index.matched(chain))
