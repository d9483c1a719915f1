"""What ``/metrics`` says of an engine, and what the difference of two scrapes says of the time between. Pure.

Unknown is None, never 0: no request gives no hit rate, and an engine that was started anew has no past.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from sapwood_metrics.quantiles import Quantile, quantile
from sapwood_tools.top.fields import number

Buckets = tuple[tuple[float, float], ...]
"""``(upper bound in seconds, observations up to it)``, both rising; the last bound is infinity."""

_PROMPT = "sapwood_prompt_tokens_total"
_OUTPUT = "sapwood_generation_tokens_total"
_REQUESTS = "sapwood_requests_total"
_EVICTED = "sapwood_evicted_tokens_total"
_PREEMPTIONS = "sapwood_preemptions_total"
_TOTALS = frozenset((_PROMPT, _OUTPUT, _REQUESTS, _EVICTED, _PREEMPTIONS))
_TTFT = "sapwood_time_to_first_token_seconds_bucket"
_ITL = "sapwood_inter_token_latency_seconds_bucket"
_COMPUTED = ("compute", "recompute")
"""Sources of prompt tokens that no cache held; ``recompute`` was counted as computed once already."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What an engine has counted since it was started."""

    prompt_tokens: float
    cached_tokens: float
    """Those of them that a cache held."""
    output_tokens: float
    requests: float
    evicted_tokens: float
    preemptions: float
    ttft: Buckets
    itl: Buckets


@dataclass(frozen=True, slots=True)
class Latency:
    """A histogram in two figures."""

    p50: Quantile
    p95: Quantile


@dataclass(frozen=True, slots=True)
class Interval:
    """What happened between two scrapes of one engine; all None where there are not two of one process."""

    seconds: float | None = None
    prompt_tokens_per_second: float | None = None
    output_tokens_per_second: float | None = None
    evicted_tokens: float | None = None
    preemptions: float | None = None
    hit_rate: float | None = None
    """Share of the prompts' tokens that a cache held; None where no prompt was admitted."""
    ttft: Latency | None = None
    """None where nothing was observed."""
    itl: Latency | None = None


def read_figures(text: str) -> Figures | None:
    """Read an engine's ``/metrics``; None where it does not say what an engine says."""
    totals: dict[str, float] = {}
    cached = recomputed = 0.0
    buckets: dict[str, dict[float, float]] = {_TTFT: {}, _ITL: {}}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in buckets:
                    bound = float(sample.labels["le"])
                    counts = buckets[sample.name]
                    counts[bound] = counts.get(bound, 0.0) + number(sample.value)
                    continue
                if sample.name not in _TOTALS:
                    continue
                value = number(sample.value)
                totals[sample.name] = totals.get(sample.name, 0.0) + value
                if sample.name == _PROMPT:
                    source = sample.labels["source"]
                    recomputed += value if source == "recompute" else 0.0
                    cached += value if source not in _COMPUTED else 0.0
        return Figures(
            prompt_tokens=totals[_PROMPT] - recomputed,
            cached_tokens=cached,
            output_tokens=totals[_OUTPUT],
            requests=totals[_REQUESTS],
            evicted_tokens=totals[_EVICTED],
            preemptions=totals[_PREEMPTIONS],
            ttft=_rising(buckets[_TTFT]),
            itl=_rising(buckets[_ITL]),
        )
    except (ValueError, KeyError, ArithmeticError):
        return None


def _rising(counts: dict[float, float]) -> Buckets:
    return tuple(sorted(counts.items()))


def was_restarted(first: Figures, last: Figures) -> bool:
    """Whether a counter has fallen, or other buckets are counted: ``last`` is of another process."""
    before, after = _counters(first), _counters(last)
    bounds = [[bound for bound, _ in buckets] for buckets in (first.ttft, first.itl)]
    return [[bound for bound, _ in buckets] for buckets in (last.ttft, last.itl)] != bounds or any(
        new < old for old, new in zip(before, after, strict=True)
    )


def _counters(figures: Figures) -> list[float]:
    totals = [figures.prompt_tokens, figures.cached_tokens, figures.output_tokens, figures.requests]
    buckets = [count for _, count in (*figures.ttft, *figures.itl)]
    return [*totals, figures.evicted_tokens, figures.preemptions, *buckets]


def interval(first: Figures, last: Figures, seconds: float) -> Interval:
    """Return what happened between two scrapes of one process, ``seconds`` (above 0) apart."""
    prompt = last.prompt_tokens - first.prompt_tokens
    return Interval(
        seconds=seconds,
        prompt_tokens_per_second=prompt / seconds,
        output_tokens_per_second=(last.output_tokens - first.output_tokens) / seconds,
        evicted_tokens=last.evicted_tokens - first.evicted_tokens,
        preemptions=last.preemptions - first.preemptions,
        hit_rate=(last.cached_tokens - first.cached_tokens) / prompt if prompt > 0 else None,
        ttft=_latency(first.ttft, last.ttft),
        itl=_latency(first.itl, last.itl),
    )


def _latency(first: Buckets, last: Buckets) -> Latency | None:
    between = [(bound, new - old) for (bound, new), (_, old) in zip(last, first, strict=True)]
    p50, p95 = quantile(between, 0.5), quantile(between, 0.95)
    return Latency(p50, p95) if p50 is not None and p95 is not None else None
