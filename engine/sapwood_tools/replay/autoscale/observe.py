"""What the operator's sampler would read of a virtual service: an `Observation`, every 15 seconds, over a minute."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from sapwood_contract.metrics import SERIES
from sapwood_operator.autoscaling.taken import LONGEST_SECONDS
from sapwood_operator.autoscaling.values import Demand, Latencies, Observation, Reading, Replica, Taken
from sapwood_tools.replay.autoscale.fleet import Fleet, taken_by
from sapwood_tools.replay.autoscale.pods import TTFT_BORDERS, Counts, VirtualPod

SAMPLE_SECONDS = 15.0
WINDOW_SECONDS = 60.0
_ITL_BORDERS = next(each.buckets for each in SERIES if each.name == "sapwood_inter_token_latency_seconds")


@dataclass(frozen=True, slots=True)
class _Window:
    """What a pod's counters stood at, and stand at."""

    begin: Counts
    end: Counts

    @property
    def seconds(self) -> float:
        return self.end.at - self.begin.at


def observe(fleet: Fleet, now: float) -> Observation:
    """Return the service as it is ``now``, the last sample having been `SAMPLE_SECONDS` ago; keeps what it read."""
    replicas = tuple(
        Replica(
            uid=pod.name,
            name=pod.name,
            stage=pod.stage,
            age_seconds=now - pod.stage_since,
            reading=_reading(pod, now),
        )
        for pod in fleet.pods.values()
    )
    is_busy = fleet.num_running or fleet.held
    demand = Demand(
        num_waiting=len(fleet.held),
        num_running=fleet.num_running,
        idle_seconds=0.0 if is_busy else now - fleet.last_request_at,
        routed_by_prefix=_routed_by_prefix(fleet, now),
        running={pod.name: pod.num_requests for pod in fleet.pods.values()},
    )
    return Observation(replicas=replicas, current=fleet.asked, demand=demand, taken=_taken(fleet, now))


def _taken(fleet: Fleet, now: float) -> tuple[Taken, ...]:
    taken = fleet.taken
    taken.append(taken_by((pod.history[-1] for pod in fleet.pods.values()), fleet.taken_by_gone, now))
    while len(taken) > 1 and taken[1].at <= now - LONGEST_SECONDS:
        taken.popleft()
    return tuple(taken)


def _routed_by_prefix(fleet: Fleet, now: float) -> float | None:
    history = fleet.route_history
    history.append((now, len(fleet.answered), fleet.num_spilled))
    while len(history) > 1 and history[1][0] <= now - WINDOW_SECONDS:
        history.popleft()
    _, num_sent, num_spilled = history[0]
    sent = len(fleet.answered) - num_sent
    return 1 - (fleet.num_spilled - num_spilled) / sent if sent else None


def _reading(pod: VirtualPod, now: float) -> Reading:
    """Return what ``pod`` did within the last window, or since it was made."""
    counts = pod.counts(now)
    history = pod.history
    while len(history) > 1 and history[1].at <= now - WINDOW_SECONDS:
        history.popleft()
    window = _Window(history[0] if history else counts, counts)
    history.append(counts)
    seconds = window.seconds or 1.0  # of the first look: nothing happened, whatever it is divided by
    begin = window.begin
    prompts = (counts.prompt_tokens - begin.prompt_tokens) / seconds
    decoding = (counts.decode_seconds - begin.decode_seconds) / seconds
    token_seconds = pod.pace.token_seconds(round(decoding) or 1)
    generation = decoding / token_seconds
    return Reading(
        window_seconds=seconds,
        arrivals=(counts.arrivals - begin.arrivals) / seconds,
        prompt_tokens=prompts,
        cached_tokens=(counts.cached_tokens - begin.cached_tokens) / seconds,
        generation_tokens=generation,
        running=decoding + (counts.prefill_seconds - begin.prefill_seconds) / seconds,
        waiting=(counts.waiting_seconds - begin.waiting_seconds) / seconds,
        waiting_tokens=float(pod.waiting_tokens(now)),
        capacity_tokens=float(pod.capacity_tokens),
        pinned_tokens=float(pod.pinned_tokens),
        evicted_tokens=(counts.evicted_tokens - begin.evicted_tokens) / seconds,
        admissions=(counts.num_admitted - begin.num_admitted) / seconds,
        ttft=_latencies(TTFT_BORDERS, begin.ttft, counts.ttft),
        itl=_one_latency(token_seconds, generation * seconds),
        cost=pod.pace.cost(),
        curve=pod.curve(),
    )


def _latencies(borders: tuple[float, ...], begin: tuple[int, ...], end: tuple[int, ...]) -> Latencies:
    counts = tuple(float(now - before) for before, now in zip(begin, end, strict=True))
    return Latencies((*borders, float("inf")), counts)


def _one_latency(seconds: float, num_tokens: float) -> Latencies:
    counts = [0.0] * (len(_ITL_BORDERS) + 1)
    counts[bisect_left(_ITL_BORDERS, seconds)] = num_tokens
    return Latencies((*_ITL_BORDERS, float("inf")), tuple(counts))
