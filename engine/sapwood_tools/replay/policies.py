"""The policies that can be replayed: the gateway's own, and hashing as others do it, to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Protocol

from sapwood_contract.routing import RoutingPolicy
from sapwood_engine.core.block_log import BlockEvent, BlocksCleared, BlocksRemoved, BlocksStored
from sapwood_gateway.core.affinity import NO_SHARES, Decision, Weights
from sapwood_gateway.core.balance import NoReplica, Report, Standing, pick
from sapwood_gateway.core.block_feed import Batch, BlockFeed, Cleared, Event, Removed, Stored
from sapwood_gateway.core.circuit import Closed
from sapwood_gateway.core.prefix_affinity import Load, PrefixAffinity
from sapwood_gateway.core.routes import Replica, Service, ServiceKey
from sapwood_tools.replay.trace import BLOCK_TOKENS, TraceRequest

HASHED_BLOCKS = 2
"""Of a prompt, that plain hashing looks at. One would be the same for all: a trace's prompts begin alike."""


HOT_REPLICAS = (1, 4)
"""On how many replicas a beginning that many prompts have is kept: what a service gets that does not say."""


class Policy(Protocol):
    """Decides for one request after the other, and is told what became of them: one gateway's."""

    def place(self, request: TraceRequest, loads: Sequence[Load], /) -> Decision:
        """Return where ``request`` goes, which goes there now."""

    def told(self, replica: str, events: Sequence[BlockEvent]) -> None:
        """``replica`` tells how its cache has changed, whichever gateway's request changed it."""

    def computed(self, request: TraceRequest, decision: Decision, seconds: float) -> None:
        """The prompt is computed, so long after it was sent."""

    def answered(self, request: TraceRequest, decision: Decision) -> None:
        """Its answer has ended."""


class Affinity:
    """The gateway's prefix affinity, told of blocks by the engines' events, or left to guess."""

    def __init__(self, replicas: Sequence[str], capacity_blocks: int, weights: Weights, *, events: bool) -> None:
        self._policy = PrefixAffinity(BLOCK_TOKENS, weights)
        self._capacity_blocks = capacity_blocks
        self._events = events
        self._feeds: dict[str, BlockFeed] = {}
        self._sequences: dict[str, int] = {}
        self._alone: set[int] = set()
        """Decisions for replicas that had nothing else to do."""
        for replica in replicas:
            self.join(replica)

    def join(self, replica: str) -> None:
        """A replica that holds nothing has come."""
        self._policy.join(replica, self._capacity_blocks, publishes_events=self._events)
        self._sequences[replica] = 0
        if self._events:
            self._feeds[replica] = BlockFeed(self._policy.index, replica)

    def leave(self, replica: str) -> None:
        """A replica has gone, and all that it held."""
        self._policy.leave(replica)
        self._feeds.pop(replica, None)

    def level(self, replica: str) -> None:
        """It is given prompts for the first time or again."""
        self._policy.level(replica)

    def place(self, request: TraceRequest, loads: Sequence[Load], shares: Mapping[str, float] = NO_SHARES) -> Decision:
        decision = self._policy.decide(request.prompt, loads, hot_replicas=HOT_REPLICAS, shares=shares)
        self._policy.sent(request.prompt, decision)
        if any(load.num_requests == 0 for load in loads if load.replica == decision.replica):
            self._alone.add(id(decision))
        return decision

    def told(self, replica: str, events: Sequence[BlockEvent]) -> None:
        if replica in self._feeds:
            self._feeds[replica].apply(Batch("replay", self._sequences[replica], [_told(event) for event in events]))
            self._sequences[replica] += 1

    def computed(self, request: TraceRequest, decision: Decision, seconds: float) -> None:
        if id(decision) in self._alone:
            self._alone.remove(id(decision))
            self._policy.began(request.prompt, decision, seconds)
        self._policy.computed(request.prompt, decision)

    def answered(self, request: TraceRequest, decision: Decision) -> None:
        self._policy.answered(decision.replica, request.output_tokens / decision.share)


class _Forgetful:
    """What does not learn from what became of a request."""

    def told(self, replica: str, events: Sequence[BlockEvent]) -> None:
        pass

    def computed(self, request: TraceRequest, decision: Decision, seconds: float) -> None:
        pass

    def answered(self, request: TraceRequest, decision: Decision) -> None:
        pass


class Balance(_Forgetful):
    """The gateway's policies that look at load alone."""

    def __init__(self, policy: RoutingPolicy) -> None:
        self._service = Service(ServiceKey("replay", "replay"), ("model",), policy)
        self._turn = 0

    def place(self, _: TraceRequest, loads: Sequence[Load]) -> Decision:
        standings = [_standing(load) for load in loads]
        picked = pick(standings, self._service, "model", tried=(), now=0.0, turn=self._turn)
        assert not isinstance(picked, NoReplica), f"{picked} of {len(loads)} replicas that are all fit"
        self._turn += 1
        return Decision(picked.id, "least_load", 0, 0.0)


class Hash(_Forgetful):
    """Rendezvous hashing of a prompt's beginning, whatever the load."""

    def place(self, request: TraceRequest, loads: Sequence[Load]) -> Decision:
        beginning = ",".join(map(str, request.blocks[:HASHED_BLOCKS])).encode()
        best = max((load.replica for load in loads), key=lambda replica: blake2b(beginning + replica.encode()).digest())
        return Decision(best, "prefix", 0, 0.0)


POLICIES: Mapping[str, Callable[[Sequence[str], int, Weights], Policy]] = {
    "prefix-affinity": partial(Affinity, events=True),
    "prefix-affinity-guessed": partial(Affinity, events=False),
    "round-robin": lambda *_: Balance("RoundRobin"),
    "least-load": lambda *_: Balance("LeastLoad"),
    "hash": lambda *_: Hash(),
}
"""Name -> the policy for these replicas of so many blocks each, with these weights where it weighs."""


def _standing(load: Load) -> Standing:
    replica = Replica(load.replica, load.replica, "", "")
    report = Report("ready", load.num_requests, load.waiting_tokens, load.num_requests)
    return Standing(replica, load.num_requests, report, Closed())


def _told(event: BlockEvent) -> Event:
    match event:
        case BlocksStored(hashes=hashes):
            return Stored(hashes)
        case BlocksRemoved(hashes):
            return Removed(hashes)
        case BlocksCleared():
            return Cleared()
