"""What an engine's metrics say of it, in the few figures that the table has."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

_RATE_SECONDS = 10.0
"""Tokens a second are counted over the last so many."""
_CACHED_SOURCES = ("device", "host", "disk", "remote")
"""Where a prompt's tokens came from that nobody had to compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one engine has counted since it was started."""

    num_running: int = 0
    num_requests: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    ttft_buckets: tuple[tuple[float, float], ...] = ()
    """(upper bound in seconds, requests up to it), rising."""


def read_figures(text: str) -> Reading:
    """Read an engine's ``/metrics``; zeros where it says nothing that can be read."""
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError:
        return Reading()
    numbers: dict[str, float] = {}
    buckets: dict[float, float] = {}
    cached = 0.0
    for family in families:
        for sample in family.samples:
            if sample.name == "sapwood_time_to_first_token_seconds_bucket":
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
            elif sample.name in _SUMMED:
                numbers[sample.name] = numbers.get(sample.name, 0.0) + sample.value
                if sample.labels.get("source") in _CACHED_SOURCES:
                    cached += sample.value
    return Reading(
        num_running=int(numbers.get(_RUNNING, 0)),
        num_requests=int(numbers.get(_REQUESTS, 0)),
        cached_tokens=int(cached),
        prompt_tokens=int(numbers.get(_PROMPT, 0)),
        answer_tokens=int(numbers.get(_ANSWER, 0)),
        ttft_buckets=tuple(sorted(buckets.items())),
    )


_RUNNING = "sapwood_requests_running"
_REQUESTS = "sapwood_requests_total"
_PROMPT = "sapwood_prompt_tokens_total"
_ANSWER = "sapwood_generation_tokens_total"
_SUMMED = (_RUNNING, _REQUESTS, _PROMPT, _ANSWER)


@dataclass(slots=True)
class Figures:
    """The last readings of every engine."""

    _readings: dict[str, deque[tuple[float, Reading]]] = field(default_factory=dict)

    def take(self, pod: str, reading: Reading, now: float) -> None:
        """Take in what an engine has said at ``now``."""
        kept = self._readings.setdefault(pod, deque())
        if kept and reading.answer_tokens < kept[-1][1].answer_tokens:
            kept.clear()  # it was started anew
        kept.append((now, reading))
        while len(kept) > 2 and now - kept[1][0] >= _RATE_SECONDS:
            kept.popleft()

    def keep(self, pods: set[str]) -> None:
        """Forget all but these."""
        self._readings = {pod: kept for pod, kept in self._readings.items() if pod in pods}

    def last(self, pod: str) -> Reading:
        """Return the last reading; zeros where there is none."""
        kept = self._readings.get(pod)
        return kept[-1][1] if kept else Reading()

    def tokens_per_second(self, pod: str) -> float:
        """Return how many tokens of answers an engine makes."""
        kept = self._readings.get(pod)
        if not kept or kept[-1][0] <= kept[0][0]:
            return 0.0
        (begin, first), (end, last) = kept[0], kept[-1]
        return (last.answer_tokens - first.answer_tokens) / (end - begin)
