"""What Prometheus is asked about a service, and its answer as scrapes of the pods that live. Pure.

A range selector gives the raw samples with the times at which Prometheus scraped, so that what follows is the same as
for an engine's own ``/metrics``. Series of pods that are gone, and of former pods of the same name, are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sapwood_operator.autoscaling.readings import WINDOW_SECONDS
from sapwood_operator.autoscaling.scrapes import NAMES, NoScrape, Sample, Scrape, read_scrape
from sapwood_operator.autoscaling.signals import EnginePod, Heard

UNREADABLE = NoScrape("Prometheus answers with something that is not understood: is it the address of its API?")
_UNKNOWN = NoScrape(
    "Prometheus has nothing of it: does it scrape the pod, with the labels namespace, pod and inference_service?"
)
_OTHER_SHAPE = (LookupError, TypeError, ValueError, AttributeError)
"""What reading JSON of another shape raises."""
Target = tuple[str, str]
"""What scraped a pod: job and instance. Where two do, one of them is listened to."""


def query(namespace: str, service: str) -> str:
    """Return the query for the last samples of all pods of a service."""
    names = "|".join(sorted(NAMES))
    return f'{{__name__=~"{names}",namespace="{namespace}",inference_service="{service}"}}[{WINDOW_SECONDS:.0f}s]'


def read_answer(answer: Any, pods: Iterable[EnginePod]) -> dict[str, Heard]:
    """Read what ``/api/v1/query`` answers; pod's uid -> what is new of it. Any ``answer`` can be read."""
    try:
        if answer["status"] != "success":
            raise ValueError
        by_pod = _series_by_pod(answer["data"]["result"])
    except _OTHER_SHAPE:
        return {pod.uid: Heard(problem=UNREADABLE) for pod in pods}
    return {pod.uid: _heard(pod, by_pod.get(pod.name, {})) for pod in pods}


def _series_by_pod(result: Sequence[Any]) -> dict[str, dict[Target, list[Any]]]:
    found: dict[str, dict[Target, list[Any]]] = {}
    for series in result:
        labels = series["metric"]
        target = (str(labels.get("job")), str(labels.get("instance")))
        found.setdefault(str(labels.get("pod")), {}).setdefault(target, []).append(series)
    return found


def _heard(pod: EnginePod, by_target: Mapping[Target, Sequence[Any]]) -> Heard:
    try:
        told = [_samples_by_time(by_target[target], pod.after) for target in sorted(by_target)]
    except _OTHER_SHAPE:
        return Heard(problem=UNREADABLE)
    if not told:
        return Heard(problem=_UNKNOWN)
    latest = max(told, key=lambda by_time: max(by_time, default=-math.inf))
    scrapes, problem = [], None
    for at in sorted(latest):
        scraped = read_scrape(at, latest[at])
        if isinstance(scraped, Scrape):
            scrapes.append(scraped)
        problem = scraped if isinstance(scraped, NoScrape) else None
    return Heard(tuple(scrapes), problem)


def _samples_by_time(series: Iterable[Any], after: float) -> dict[float, list[Sample]]:
    """Raises one of `_OTHER_SHAPE` for what is no series."""
    by_time: dict[float, list[Sample]] = {}
    for each in series:
        labels = {str(name): str(value) for name, value in each["metric"].items()}
        for at, value in each["values"]:
            if not _is_time(at):
                raise ValueError
            if at > after:
                by_time.setdefault(at, []).append(Sample(labels["__name__"], labels, _number(value)))
    return by_time


def _is_time(at: object) -> bool:
    return isinstance(at, int | float) and not isinstance(at, bool) and math.isfinite(at)


def _number(text: object) -> float:
    """Return a sample's value, which Prometheus writes as a text; NaN for what is none."""
    try:
        return float(text) if isinstance(text, str) else math.nan
    except ValueError:
        return math.nan
