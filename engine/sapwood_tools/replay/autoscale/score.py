"""What a run is worth: promises kept, replicas paid for, and how far that is from the clairvoyant's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sapwood_tools.replay.autoscale.run import Run

PROMISE_SECONDS = 60.0
"""Spans for which it is looked at whether the 90th percentile was within the promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One controller on one trace; shares from 0 to 1."""

    controller: str
    slo_attainment: float
    """Of the minutes with arrivals: 90 of 100 requests had their first token in time."""
    requests_in_time: float
    replica_hours: float
    """Of all that existed, from asked for to gone."""
    over_clairvoyant: float
    """Replica hours against the clairvoyant's."""
    near_clairvoyant: float
    """Of the intervals: as many were asked for as the clairvoyant did, give or take one."""
    scale_events: int
    hit_ratio: float
    recomputed_tokens: int
    """That an endless cache would have had."""
    ttft_p50_seconds: float
    ttft_p90_seconds: float
    ttft_p99_seconds: float
    most_replicas: int


def score(run: Run, clairvoyant: Run, *, ttft_seconds: float, endless_cached_tokens: int) -> Score:
    """Sum up ``run``, the promise being ``ttft_seconds`` at the 90th percentile."""
    answered = run.scored
    ttfts = sorted(each.ttft_seconds for each in answered)
    prompt_tokens = sum(each.prompt_tokens for each in answered)
    cached_tokens = sum(each.cached_tokens for each in answered)
    minutes = percentiles(run, PROMISE_SECONDS, 0.9)
    near = [abs(mine.asked - best.asked) <= 1 for mine, best in zip(run.intervals, clairvoyant.intervals, strict=True)]
    return Score(
        controller=run.controller,
        slo_attainment=_share([p90 <= ttft_seconds for _, p90 in minutes]),
        requests_in_time=_share([each <= ttft_seconds for each in ttfts]),
        replica_hours=run.pod_seconds / 3600,
        over_clairvoyant=run.pod_seconds / clairvoyant.pod_seconds,
        near_clairvoyant=_share(near),
        scale_events=run.num_changes,
        hit_ratio=cached_tokens / prompt_tokens,
        recomputed_tokens=endless_cached_tokens - cached_tokens,
        ttft_p50_seconds=percentile(ttfts, 0.5),
        ttft_p90_seconds=percentile(ttfts, 0.9),
        ttft_p99_seconds=percentile(ttfts, 0.99),
        most_replicas=max(each.asked for each in run.intervals),
    )


def percentiles(run: Run, span_seconds: float, share: float) -> list[tuple[float, float]]:
    """Return for each span with arrivals when it began, and the percentile of its times to the first token."""
    spans: dict[int, list[float]] = {}
    for each in run.scored:
        spans.setdefault(int(each.arrived_at // span_seconds), []).append(each.ttft_seconds)
    return [(number * span_seconds, percentile(sorted(spans[number]), share)) for number in sorted(spans)]


def hit_ratios(run: Run, span_seconds: float) -> list[tuple[float, float]]:
    """Return for each span with arrivals when it began, and its hit ratio of prompt tokens."""
    spans: dict[int, list[int]] = {}
    for each in run.scored:
        span = spans.setdefault(int(each.arrived_at // span_seconds), [0, 0])
        span[0] += each.cached_tokens
        span[1] += each.prompt_tokens
    return [(number * span_seconds, cached / prompt) for number, (cached, prompt) in sorted(spans.items())]


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the least of ``ordered``, which are at least one, that ``share`` of them do not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def _share(holds: Sequence[bool]) -> float:
    return sum(holds) / len(holds)
