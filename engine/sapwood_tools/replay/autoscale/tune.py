"""Targets for every rule on equal terms: each is tried with the same number of settings on the first half of a trace.

What is chosen there is the fewest replica hours among those that keep the promise in `KEPT` of the minutes, or else
what keeps it most. What it is worth is said by the second half, which nobody chose by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from sapwood_tools.replay.autoscale.compare import Foreseen, Scene
from sapwood_tools.replay.autoscale.controllers import rules
from sapwood_tools.replay.autoscale.observe import SAMPLE_SECONDS
from sapwood_tools.replay.autoscale.run import Run, play
from sapwood_tools.replay.autoscale.score import PROMISE_SECONDS, Score, percentiles, score
from sapwood_tools.replay.trace import TraceRequest

KEPT = 0.99
GRID: Mapping[str, Sequence[float | tuple[float, float]]] = {
    "sapwood": (0.85, 0.9, 0.95, 1.0),
    "hpa-queue": (1.0, 2.0, 4.0, 8.0),
    "keda-kv": (0.4, 0.2, 0.1, 0.05),
    "current-hit": (0.7, 0.8, 0.9, 1.0),
    "slo-ratio": ((0.25, 0.4), (0.4, 0.55), (0.55, 0.7), (0.7, 0.85)),
}
"""Of the operator's decision ``prefillUtilization``, of the others their targets."""


def chosen(requests: Sequence[TraceRequest], scene: Scene, foreseen: Foreseen, names: Sequence[str]) -> Scene:
    """Return ``scene`` with the targets that do best on the first half of ``requests``."""
    half = half_of(requests)
    early = [request for request in requests if request.arrival_seconds < half]
    opening = foreseen.opening(scene.opening_seconds)
    for name in names:
        tried = [with_target(scene, name, target) for target in GRID[name]]
        worth = []
        for number, each in enumerate(tried):
            controller = rules(each.policy, each.targets, each.ttft_seconds)[name]()
            run = play(early, controller, each.fleet, opening)
            worth.append((*_worth(run, scene.ttft_seconds), number))
        scene = tried[min(worth)[-1]]
    return scene


def with_target(scene: Scene, name: str, target: float | tuple[float, float]) -> Scene:
    """Return ``scene`` in which the rule of that ``name`` has this target."""
    targets = scene.targets
    match name, target:
        case "sapwood", float(share):
            return replace(scene, policy=replace(scene.policy, prefill_utilization=share))
        case "hpa-queue", float(requests):
            return replace(scene, targets=replace(targets, waiting_requests=requests))
        case "keda-kv", float(share):
            return replace(scene, targets=replace(targets, kv_use=share))
        case "current-hit", float(share):
            return replace(scene, targets=replace(targets, utilization=share))
        case "slo-ratio", (low, high):
            return replace(scene, targets=replace(targets, slo_low=low, slo_high=high))
    raise ValueError(f"{name}: {target!r} is no target of it")


def half_of(requests: Sequence[TraceRequest]) -> float:
    """Return the time, an end of an interval, before which the first half of the trace's time is."""
    return requests[-1].arrival_seconds / 2 // SAMPLE_SECONDS * SAMPLE_SECONDS


def part_of(run: Run, begin: float, end: float) -> Run:
    """Return what of ``run`` is from ``begin`` to ``end``; pods are paid for as many as there are at each look."""
    intervals = [each for each in run.intervals if begin <= each.at < end]
    decided = [each for each in intervals if each.at >= run.scored_from]
    return Run(
        controller=run.controller,
        scored_from=max(begin, run.scored_from),
        intervals=intervals,
        answered=[each for each in run.answered if begin <= each.arrived_at < end],
        pod_seconds=SAMPLE_SECONDS * sum(each.existing for each in decided),
        num_changes=sum(after.asked != before.asked for before, after in pairwise(decided)),
        num_held=run.num_held,
    )


def scores_of(runs: Sequence[Run], begin: float, end: float, ttft_seconds: float) -> list[Score]:
    """Return the scores of ``runs``, the clairvoyant's last, in that time.

    What an endless cache would have is not reckoned for a part: what is computed again counts from what the best has.
    """
    parts = [part_of(run, begin, end) for run in runs]
    most = max(sum(each.cached_tokens for each in part.scored) for part in parts)
    return [score(each, parts[-1], ttft_seconds=ttft_seconds, endless_cached_tokens=most) for each in parts]


def _worth(run: Run, ttft_seconds: float) -> tuple[float, float]:
    """Return what is the less, the better ``run`` is."""
    minutes = percentiles(run, PROMISE_SECONDS, 0.9)
    kept = sum(p90 <= ttft_seconds for _, p90 in minutes) / len(minutes) if minutes else 1.0
    return max(0.0, KEPT - kept), run.pod_seconds
