"""One trace through one policy over so many engines, in virtual time.

Several gateways take turns with the requests. Each decides by what it knows itself: its own requests as they are, those
of the others as engines last reported, and everybody's blocks as engines tell of them.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from sapwood_gateway.core.affinity import DEFAULT_WEIGHTS, Decision, Weights
from sapwood_gateway.core.prefix_affinity import Load
from sapwood_tools.replay.engine import Served, Speed, VirtualEngine
from sapwood_tools.replay.policies import POLICIES, Policy
from sapwood_tools.replay.trace import BLOCK_TOKENS, TraceRequest

REPORT_SECONDS = 1.0
"""How old what a gateway knows of an engine's line may be: it asks once a second."""


@dataclass(slots=True)
class Tally:
    """What is counted, one entry a replica or a request."""

    computed_tokens: list[int]
    """By replica: prompt tokens that it did not find, and the tokens of its answers."""
    num_requests: list[int]
    cached_tokens: int = 0
    num_foreseen: int = 0
    """Requests that found what the gateway expected, give or take a block."""
    seconds_to_first_token: list[float] = field(default_factory=list)


def speed_for(requests: Sequence[TraceRequest], num_replicas: int, *, busy: float, token_seconds: float) -> Speed:
    """Return the speed at which ``num_replicas`` engines without any cache would compute prompts for a share ``busy``
    of the time.
    """
    seconds = max(1.0, requests[-1].arrival_seconds - requests[0].arrival_seconds)
    num_tokens = sum(request.prompt.num_tokens for request in requests)
    return Speed(num_tokens / seconds / num_replicas / busy, token_seconds)


def simulate(
    requests: Sequence[TraceRequest],
    policy_name: str,
    *,
    num_replicas: int,
    capacity_blocks: int,
    speed: Speed,
    num_gateways: int = 1,
    weights: Weights = DEFAULT_WEIGHTS,
) -> Tally:
    """Send all ``requests`` and return what came of it. `CacheTooSmall` where one cannot fit."""
    names = [f"replica-{number}" for number in range(num_replicas)]
    policies = [POLICIES[policy_name](names, capacity_blocks, weights) for _ in range(num_gateways)]
    run = _Run(names, [_Gateway(policy) for policy in policies], capacity_blocks, speed)
    for request in requests:
        run.send(request)
    return run.tally


class _Gateway:
    """One gateway: its policy, and its own requests."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.num_own: Counter[str] = Counter()
        """By replica."""
        self._num_own_reported: Counter[str] = Counter()
        """At the last reports."""

    def reported(self) -> None:
        """All replicas have reported."""
        self._num_own_reported = self.num_own.copy()

    def load(self, report: Load) -> Load:
        """Return what it knows of a replica that has said ``report``."""
        name = report.replica
        others = report.num_requests - self._num_own_reported[name]
        return report._replace(num_requests=self.num_own[name] + others)


class _Run:
    """The engines, the gateways, and what is still to happen."""

    def __init__(self, names: Sequence[str], gateways: Sequence[_Gateway], capacity_blocks: int, speed: Speed) -> None:
        self._engines = {name: VirtualEngine(capacity_blocks, speed) for name in names}
        self._numbers = {name: number for number, name in enumerate(names)}
        self._gateways = gateways
        self._turns = cycle(gateways)
        self._reported_at = -1.0
        self._reports: list[Load] = []
        self._pending: list[tuple[float, int, Callable[[], None]]] = []
        self._num_pushed = 0
        self.tally = Tally([0] * len(names), [0] * len(names))

    def send(self, request: TraceRequest) -> None:
        now = request.arrival_seconds
        self._catch_up(now)
        gateway = next(self._turns)
        decision = gateway.policy.place(request, [gateway.load(report) for report in self._reports])
        gateway.num_own[decision.replica] += 1
        served = self._engines[decision.replica].serve(request, now)
        self._push(served.first_token_at, lambda: self._computed(request, gateway, decision, served))
        self._push(served.done_at, lambda: self._end(request, gateway, decision))
        self._count(request, decision, served)

    def _catch_up(self, now: float) -> None:
        """Let everything happen that happens before ``now``, the last round of reports included."""
        while self._pending and self._pending[0][0] <= now:
            heapq.heappop(self._pending)[2]()
        reported_at = math.floor(now / REPORT_SECONDS) * REPORT_SECONDS
        if reported_at != self._reported_at:
            self._reported_at = reported_at
            self._reports = [
                Load(name, engine.num_requests, engine.waiting_tokens(reported_at))
                for name, engine in self._engines.items()
            ]
            for gateway in self._gateways:
                gateway.reported()

    def _computed(self, request: TraceRequest, gateway: _Gateway, decision: Decision, served: Served) -> None:
        for each in self._gateways:
            each.policy.told(decision.replica, served.events)
        gateway.policy.computed(request, decision, served.first_token_at - request.arrival_seconds)

    def _end(self, request: TraceRequest, gateway: _Gateway, decision: Decision) -> None:
        self._engines[decision.replica].ended()
        gateway.num_own[decision.replica] -= 1
        gateway.policy.answered(request, decision)

    def _push(self, at: float, happen: Callable[[], None]) -> None:
        self._num_pushed += 1
        heapq.heappush(self._pending, (at, self._num_pushed, happen))

    def _count(self, request: TraceRequest, decision: Decision, served: Served) -> None:
        tally, number = self.tally, self._numbers[decision.replica]
        tally.cached_tokens += served.cached_tokens
        tally.computed_tokens[number] += request.prompt.num_tokens - served.cached_tokens + request.output_tokens
        tally.num_requests[number] += 1
        tally.num_foreseen += abs(served.cached_tokens - decision.matched_tokens) <= BLOCK_TOKENS
        tally.seconds_to_first_token.append(served.first_token_at - request.arrival_seconds)
