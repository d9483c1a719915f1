"""A service in virtual time: one gateway, pods that come and go, and every request that passes.

A pod that is asked for loads for `FleetSettings.start_seconds`, computes what prompts began with of late, and is ready.
One that is to go is sent nothing new, finishes what it has, and is gone. All that happens, happens in order of time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sapwood_gateway.core.affinity import DEFAULT_WEIGHTS, NO_SHARES, Decision
from sapwood_gateway.core.prefix_affinity import Load
from sapwood_gateway.core.slow_start import share_after, weighed
from sapwood_operator.autoscaling.values import Stage, Taken
from sapwood_tools.replay.autoscale.pods import Counts, PodSettings, Served, VirtualPod
from sapwood_tools.replay.autoscale.worth import first_to_go, for_newcomer, handed_over
from sapwood_tools.replay.policies import Affinity
from sapwood_tools.replay.trace import TraceRequest

REPORT_SECONDS = 1.0
"""How old what the gateway knows of an engine's line may be: it asks once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """What the world is like; times in seconds."""

    pods: PodSettings
    start_seconds: float = 60.0
    """From the moment that a pod is asked for until its weights are loaded."""
    warm_seconds: float = 30.0
    """Most that it computes prefixes before it is ready; 0: it gets ready cold."""


class Answered(NamedTuple):
    """One request; tokens of the trace."""

    arrived_at: float
    ttft_seconds: float
    """Since it arrived at the gateway."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    pod: str


def taken_by(counts: Iterable[Counts], others: Taken, now: float) -> Taken:
    """Return what pods with these ``counts`` and ``others`` had taken together until ``now``."""
    arrivals, admissions, tokens = others.arrivals, others.admissions, others.prompt_tokens
    for each in counts:
        arrivals += each.arrivals
        admissions += each.num_admitted
        tokens += each.prompt_tokens
    return Taken(at=now, arrivals=arrivals, admissions=admissions, prompt_tokens=tokens)


class Fleet:
    """The pods of one service, and the gateway before them."""

    def __init__(self, settings: FleetSettings, num_pods: int) -> None:
        """Begin at time 0 with ``num_pods`` that are ready and hold nothing."""
        self.settings = settings
        self.now = 0.0
        self.pods: dict[str, VirtualPod] = {}
        """All that exist, by name, the oldest first."""
        self.answered: list[Answered] = []
        """In the order in which they were sent to a pod."""
        self.held: deque[TraceRequest] = deque()
        """Arrived while no pod was ready."""
        self.last_request_at = 0.0
        """When one came or ended last."""
        self.num_running = 0
        self._gone_seconds = 0.0
        """Of pods that are gone, from the moment that they were asked for."""
        self.num_changes = 0
        """Times that the number of pods asked for changed."""
        self.router = Affinity([], settings.pods.capacity_blocks, DEFAULT_WEIGHTS, events=True)
        self.taken: deque[Taken] = deque()
        """Whoever samples keeps here what was taken of late."""
        self.taken_by_gone = Taken(at=0.0, arrivals=0.0, admissions=0.0, prompt_tokens=0.0)
        """By pods that are no more."""
        self.num_spilled = 0
        """Requests that another pod had more of than the one which they went to."""
        self.route_history: deque[tuple[float, int, int]] = deque()
        """Whoever samples keeps here when how many were sent, and spilled."""
        self._began: dict[str, float] = {}
        """Pod that starts slowly -> when it could be sent its first request."""
        self._pending: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._num_pushed = 0
        self._num_made = 0
        self._reported_at = -1.0
        self._waiting: dict[str, int] = {}
        """Ready pod -> its waiting tokens at its last report."""
        for _ in range(num_pods):
            self._ready(self._make("ready"))

    # --- pods

    @property
    def asked(self) -> int:
        """Pods that are wanted: all but those on their way out."""
        return sum(pod.stage != "leaving" for pod in self.pods.values())

    def num_in(self, stage: Stage) -> int:
        """Return how many pods are in ``stage``."""
        return sum(pod.stage == stage for pod in self.pods.values())

    def resize(self, num_pods: int) -> None:
        """Have ``num_pods`` asked for from now on."""
        more = num_pods - self.asked
        self.num_changes += more != 0
        if more > 0:
            for pod in [pod for pod in self.pods.values() if pod.stage == "leaving"][:more]:
                self._set(pod, "ready")
                self._waiting[pod.name] = pod.waiting_tokens(self.now)
                more -= 1
            for _ in range(more):
                self._push(self.now + self.settings.start_seconds, self._loaded, self._make("starting"))
        if more < 0:
            staying = [pod for pod in self.pods.values() if pod.stage != "leaving"]
            for name in first_to_go(staying, -more, self.now):
                self._cordon(self.pods[name])

    def _ready_pods(self) -> list[VirtualPod]:
        return [pod for pod in self.pods.values() if pod.stage == "ready"]

    @property
    def _warm_tokens(self) -> float:
        return self.settings.warm_seconds * self.settings.pods.pace.prefill_tokens_per_second

    def _make(self, stage: Stage) -> VirtualPod:
        pod = VirtualPod(f"pod-{self._num_made}", self.settings.pods, self.now, stage=stage)
        self._num_made += 1
        self.pods[pod.name] = pod
        return pod

    def _loaded(self, pod: VirtualPod) -> None:
        """Its weights are there: it computes what prompts began with of late."""
        if self.pods.get(pod.name) is not pod:
            return
        self._set(pod, "warming")
        prefixes = for_newcomer(pod, self._ready_pods(), self.now, most_tokens=self._warm_tokens)
        self._push(pod.warm(prefixes, self.now), self._ready, pod)

    def _ready(self, pod: VirtualPod) -> None:
        if self.pods.get(pod.name) is not pod:
            return
        self._set(pod, "ready")
        self.router.join(pod.name)
        self.router.told(pod.name, pod.cache.take_block_events())
        if self._waiting:
            self._began[pod.name] = self.now
            self.router.level(pod.name)
        self._waiting[pod.name] = 0
        while self.held:
            self._send(self.held.popleft())

    def _cordon(self, pod: VirtualPod) -> None:
        if pod.stage != "ready":
            self._end(pod)
            return
        self._set(pod, "leaving")
        self._waiting.pop(pod.name, None)
        self._began.pop(pod.name, None)
        given = handed_over(pod, self._ready_pods(), self.now, most_tokens=self._warm_tokens)
        for name, prefixes in given.items():
            self.pods[name].give(prefixes)
        if not pod.num_requests:
            self._end(pod)

    def _end(self, pod: VirtualPod) -> None:
        self._waiting.pop(pod.name, None)
        del self.pods[pod.name]
        self._gone_seconds += self.now - pod.created_at
        self.taken_by_gone = taken_by([pod.counts(self.now)], self.taken_by_gone, self.now)
        self.router.leave(pod.name)

    def _set(self, pod: VirtualPod, stage: Stage) -> None:
        pod.stage, pod.stage_since = stage, self.now

    def pod_seconds_until(self, now: float) -> float:
        """Return the time that pods have existed, from the moment that each was asked for."""
        return self._gone_seconds + sum(now - pod.created_at for pod in self.pods.values())

    # --- requests

    def send(self, request: TraceRequest) -> None:
        """``request`` arrives, not before what happened last; it is held while no pod is ready."""
        self.advance(request.arrival_seconds)
        self.last_request_at = self.now
        if self._waiting:
            self._send(request)
        else:
            self.held.append(request)

    def _send(self, request: TraceRequest) -> None:
        now, pods = self.now, self.pods
        reported_at = now // REPORT_SECONDS * REPORT_SECONDS
        if reported_at != self._reported_at:
            self._reported_at = reported_at
            for name in self._waiting:
                self._waiting[name] = pods[name].waiting_tokens(reported_at)
        # One gateway knows of all requests, as they are.
        loads = [Load(name, pods[name].num_requests, waiting) for name, waiting in self._waiting.items()]
        decision = self.router.place(request, *self._slowly(loads))
        pod = pods[decision.replica]
        served = pod.serve(request, now)
        self.num_running += 1
        self.num_spilled += decision.reason == "spill"
        self._push(served.first_token_at, self._computed, pod, request, decision, served)
        self._push(served.done_at, self._answered, pod, request, decision)
        self.answered.append(
            Answered(
                request.arrival_seconds,
                served.first_token_at - request.arrival_seconds,
                request.prompt.num_tokens,
                served.cached_tokens,
                request.output_tokens,
                pod.name,
            )
        )

    def _slowly(self, loads: list[Load]) -> tuple[list[Load], Mapping[str, float]]:
        """Return ``loads`` as they weigh, and the shares of pods that start slowly."""
        if not self._began:
            return loads, NO_SHARES
        shares = {name: share_after(self.now - since) for name, since in self._began.items()}
        self._began = {name: since for name, since in self._began.items() if shares[name] < 1}
        if not any(load.replica not in self._began for load in loads):
            return loads, NO_SHARES
        return [weighed(load, shares.get(load.replica, 1.0)) for load in loads], shares

    def _computed(self, pod: VirtualPod, request: TraceRequest, decision: Decision, served: Served) -> None:
        pod.began(request, self.now)
        self.router.told(pod.name, served.events)
        self.router.computed(request, decision, served.first_token_at - request.arrival_seconds)

    def _answered(self, pod: VirtualPod, request: TraceRequest, decision: Decision) -> None:
        pod.ended(request, self.now)
        self.num_running -= 1
        self.last_request_at = self.now
        self.router.answered(request, decision)
        if pod.stage == "leaving" and not pod.num_requests:
            self._end(pod)

    # --- time

    def advance(self, now: float) -> None:
        """Let everything happen that happens until ``now``."""
        pending = self._pending
        while pending and pending[0][0] <= now:
            self.now, _, happen, arguments = heapq.heappop(pending)
            happen(*arguments)
        self.now = now

    def _push(self, at: float, happen: Callable[..., None], *arguments: Any) -> None:
        self._num_pushed += 1
        heapq.heappush(self._pending, (at, self._num_pushed, happen, arguments))
