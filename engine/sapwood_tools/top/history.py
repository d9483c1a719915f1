"""What the answers of one engine or gateway, one after the other, come to. Pure: the times are the answers' own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sapwood_tools.top.cache_changes import Change, changes
from sapwood_tools.top.figures import Figures, Interval, interval, was_restarted
from sapwood_tools.top.gateway_figures import GatewayFigures
from sapwood_tools.top.samples import Cache, Sample
from sapwood_tools.top.source import GatewayAnswer

WINDOW_SECONDS = 10.0
"""Rates are of the last so many seconds."""
_CHANGES_KEPT = 200


_UNKNOWN = Interval()


@dataclass(frozen=True, slots=True)
class Seen:
    """Something that happened, and when it was noticed."""

    at: float
    change: Change


@dataclass(frozen=True, slots=True)
class EngineView:
    """What is known of one engine."""

    name: str
    url: str
    now: Sample
    """Its last answers."""
    interval: Interval = _UNKNOWN
    seen: tuple[Seen, ...] = ()
    """The latest first."""
    num_restarts: int = 0
    """As far as they were noticed."""


class EngineHistory:
    """The answers of one engine."""

    def __init__(self, name: str, url: str) -> None:
        self._name, self._url = name, url
        self._figures: deque[tuple[float, Figures]] = deque()
        self._cache: Cache | None = None
        self._seen: deque[Seen] = deque(maxlen=_CHANGES_KEPT)
        self._num_restarts = 0

    def take(self, sample: Sample) -> EngineView:
        """Take in the next answers, and return what is known with them."""
        if sample.figures is not None:
            if self._figures and was_restarted(self._figures[-1][1], sample.figures):
                self._num_restarts += 1
                self._figures.clear()
                self._cache = None  # its nodes are no longer those
            self._figures.append((sample.at, sample.figures))
            _forget_old(self._figures)
        if sample.cache is not None:
            if self._cache is not None:
                for change in changes(self._cache, sample.cache):
                    self._seen.appendleft(Seen(sample.at, change))
            self._cache = sample.cache
        return EngineView(
            name=self._name,
            url=self._url,
            now=sample,
            interval=_UNKNOWN if sample.figures is None else self._interval(),
            seen=tuple(self._seen),
            num_restarts=self._num_restarts,
        )

    def _interval(self) -> Interval:
        (begin, first), (end, last) = self._figures[0], self._figures[-1]
        return interval(first, last, end - begin) if end > begin else _UNKNOWN


@dataclass(frozen=True, slots=True)
class GatewayView:
    """What is known of a gateway."""

    url: str
    now: GatewayFigures | None
    routed: tuple[tuple[str, float], ...] = ()
    """``(what a replica was chosen for, share)`` of the requests of late, the largest first; empty where none came."""
    problem: str = ""


class GatewayHistory:
    """The answers of one gateway."""

    def __init__(self) -> None:
        self._figures: deque[tuple[float, GatewayFigures]] = deque()

    def take(self, answer: GatewayAnswer) -> GatewayView:
        """Take in the next answer, and return what is known with it."""
        figures = answer.figures
        if figures is None:
            return GatewayView(answer.url, None, problem=answer.problem)
        before = dict(self._figures[-1][1].routed) if self._figures else {}
        if any(number < before.get(result, 0) for result, number in figures.routed):
            self._figures.clear()  # it was started anew
        self._figures.append((answer.at, figures))
        _forget_old(self._figures)
        first = dict(self._figures[0][1].routed)
        late = {result: number - first.get(result, 0) for result, number in figures.routed}
        total = sum(late.values())
        shares = sorted(((name, number / total) for name, number in late.items() if number), key=lambda each: -each[1])
        return GatewayView(answer.url, figures, tuple(shares))


def _forget_old(kept: deque[tuple[float, Figures]] | deque[tuple[float, GatewayFigures]]) -> None:
    """Drop what is not needed for a difference over `WINDOW_SECONDS`, or as near above it as there is."""
    while len(kept) > 2 and kept[-1][0] - kept[1][0] >= WINDOW_SECONDS:
        kept.popleft()
