"""One trace through one policy over so many engines, in virtual time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
    weights: Weights = DEFAULT_WEIGHTS,
) -> Tally:
    """Send all ``requests`` and return what came of it. `CacheTooSmall` where one cannot fit."""
    names = [f"replica-{number}" for number in range(num_replicas)]
    run = _Run(names, POLICIES[policy_name](names, capacity_blocks, weights), capacity_blocks, speed)
    for request in requests:
        run.send(request)
    return run.tally


class _Run:
    """The engines, the policy, and what is still to happen."""

    def __init__(self, names: Sequence[str], policy: Policy, capacity_blocks: int, speed: Speed) -> None:
        self._engines = {name: VirtualEngine(capacity_blocks, speed) for name in names}
        self._numbers = {name: number for number, name in enumerate(names)}
        self._policy = policy
        self._reported_at = -1.0
        self._reports: dict[str, int] = {}
        self._pending: list[tuple[float, int, Callable[[], None]]] = []
        self._num_pushed = 0
        self.tally = Tally([0] * len(names), [0] * len(names))

    def send(self, request: TraceRequest) -> None:
        now = request.arrival_seconds
        self._catch_up(now)
        loads = [Load(name, engine.num_requests, self._reports[name]) for name, engine in self._engines.items()]
        decision = self._policy.place(request, loads)
        served = self._engines[decision.replica].serve(request, now)
        self._push(served.first_token_at, lambda: self._policy.computed(request, decision, served.events))
        self._push(served.done_at, lambda: self._end(request, decision))
        self._count(request, decision, served)

    def _catch_up(self, now: float) -> None:
        """Let everything happen that happens before ``now``, the last round of reports included."""
        while self._pending and self._pending[0][0] <= now:
            heapq.heappop(self._pending)[2]()
        reported_at = math.floor(now / REPORT_SECONDS) * REPORT_SECONDS
        if reported_at != self._reported_at:
            self._reported_at = reported_at
            self._reports = {name: engine.waiting_tokens(reported_at) for name, engine in self._engines.items()}

    def _end(self, request: TraceRequest, decision: Decision) -> None:
        self._engines[decision.replica].ended()
        self._policy.answered(request, decision)

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
