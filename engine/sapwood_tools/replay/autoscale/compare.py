"""One trace under every controller, and the clairvoyant's plan that all are measured against."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sapwood_operator.domain.scaling_policy import ScalingPolicy
from sapwood_tools.replay.autoscale.clairvoyant import Clairvoyant, Future, ahead, mend, needed
from sapwood_tools.replay.autoscale.controllers import Targets, rules
from sapwood_tools.replay.autoscale.fleet import FleetSettings
from sapwood_tools.replay.autoscale.observe import SAMPLE_SECONDS
from sapwood_tools.replay.autoscale.run import Run, play
from sapwood_tools.replay.autoscale.score import PROMISE_SECONDS, Score, percentiles, score
from sapwood_tools.replay.one_cache import cached_tokens
from sapwood_tools.replay.trace import TraceRequest

MOST_MENDINGS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """All that a comparison assumes beside the trace."""

    policy: ScalingPolicy
    ttft_seconds: float
    """Promised at the 90th percentile."""
    fleet: FleetSettings
    opening_seconds: float = 300.0
    """In which caches fill: everybody has the clairvoyant's replicas, and nothing is scored."""
    targets: Targets = field(default_factory=Targets)


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The clairvoyant's run, and what it asked for in each interval."""

    run: Run
    asked: Sequence[int]

    def opening(self, seconds: float) -> Sequence[int]:
        """Return what it asked for in the first ``seconds``, at least one interval, not all of them."""
        num_intervals = min(max(1, math.ceil(seconds / SAMPLE_SECONDS)), max(1, len(self.asked) - 1))
        return self.asked[:num_intervals]


def foresee(requests: Sequence[TraceRequest], scene: Scene) -> Foreseen:
    """Return the run of the fewest replicas that keep the promise in every minute, as far as mending a plan finds them.

    The plan is reckoned (`clairvoyant.needed`), then tried: for each minute in which the replayed service broke the
    promise all the same, as its lines are uneven and new caches cold, it has one replica more, and is tried again.
    """
    settings = scene.fleet
    future = Future(
        pace=settings.pods.pace,
        capacity_blocks=settings.pods.capacity_blocks,
        ttft_seconds=scene.ttft_seconds,
        least=max(1, scene.policy.min_replicas),
        most=scene.policy.max_replicas,
    )
    plan = needed(requests, future)
    best: tuple[int, float, Foreseen] | None = None
    for _ in range(MOST_MENDINGS):
        start_seconds = settings.start_seconds + settings.warm_seconds
        asked = ahead(plan.numbers, start_seconds, scene.policy.down.window_seconds)
        opening = Foreseen(Run("", 0.0), asked).opening(scene.opening_seconds)
        run = play(requests, Clairvoyant(asked), settings, opening)
        late = [begin for begin, p90 in percentiles(run, PROMISE_SECONDS, 0.9) if p90 > scene.ttft_seconds]
        if best is None or (len(late), run.pod_seconds) < best[:2]:
            best = (len(late), run.pod_seconds, Foreseen(run, asked))
        mended = mend(plan, late, future)
        if mended == plan:
            break
        plan = mended
    assert best is not None, "no plan was tried"
    return best[2]


def compare(
    requests: Sequence[TraceRequest],
    scene: Scene,
    foreseen: Foreseen,
    names: Sequence[str],
    said: Callable[[Score], object],
) -> tuple[list[Run], list[Score]]:
    """Return the runs and scores of the controllers of these ``names`` and, last, of the clairvoyant.

    ``said`` gets each score as soon as it is there. Raises `sapwood_tools.replay.engine.CacheTooSmall`.
    """
    opening = foreseen.opening(scene.opening_seconds)
    makers = rules(scene.policy, scene.targets, scene.ttft_seconds)
    runs = [play(requests, makers[name](), scene.fleet, opening) for name in names]
    scores = []
    endless = endless_cached_tokens(requests, foreseen.run.scored_from)
    for run in (*runs, foreseen.run):
        scores.append(score(run, foreseen.run, ttft_seconds=scene.ttft_seconds, endless_cached_tokens=endless))
        said(scores[-1])
    return [*runs, foreseen.run], scores


def endless_cached_tokens(requests: Sequence[TraceRequest], since: float) -> int:
    """Return the prompt tokens that an endless cache has of the requests that arrive from ``since`` on."""
    before = [request for request in requests if request.arrival_seconds < since]
    return cached_tokens(requests, None) - cached_tokens(before, None)
