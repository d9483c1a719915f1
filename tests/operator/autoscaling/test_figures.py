"""What was measured, as texts: rounded, kept until they are well off, and absent where nothing is known."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sapwood_operator.autoscaling.figures import figures
from sapwood_operator.autoscaling.values import (
    Demand,
    Latencies,
    NoReading,
    Observation,
    Reading,
    Replica,
)


def a_reading(**changes: Any) -> Reading:
    given: dict[str, Any] = {
        "window_seconds": 60.0,
        "arrivals": 1.0,
        "prompt_tokens": 1000.0,
        "cached_tokens": 610.0,
        "generation_tokens": 10.0,
        "running": 1.0,
        "waiting": 0.0,
        "waiting_tokens": 0.0,
        "capacity_tokens": 1000.0,
        "pinned_tokens": 540.0,
        "evicted_tokens": 1234.0,
        "regret_tokens": 3.0,
        "ttft": Latencies((0.5, 1.0, math.inf), (8.0, 2.0, 0.0)),
    }
    return Reading(**{**given, **changes})


def seen(*readings: Reading | NoReading, former: object = None) -> dict[str, str]:
    replicas = tuple(
        Replica(uid=str(number), name=str(number), stage="ready", age_seconds=1000.0, reading=reading)
        for number, reading in enumerate(readings)
    )
    demand = Demand(num_waiting=0, num_running=0, idle_seconds=0.0)
    return figures(Observation(replicas=replicas, current=len(replicas), demand=demand), former)


def test_figures_are_of_all_replicas_together_and_rounded() -> None:
    assert seen(a_reading(), a_reading(cached_tokens=810.0, regret_tokens=0.0)) == {
        "ttftP90": "750ms",
        "hitRate": "0.71",
        "evictionRate": "2.5k/s",
        "regretRate": "3/s",
        "pinnedKv": "0.54",
    }


def test_what_is_not_known_is_not_there() -> None:
    assert seen(NoReading("it does not answer")) == {}
    idle = seen(a_reading(prompt_tokens=0.0, cached_tokens=0.0, ttft=Latencies()))
    assert idle.keys() == {"evictionRate", "regretRate", "pinnedKv"}


FORMER = {"ttftP90": "750ms", "hitRate": "0.61", "evictionRate": "1.2k/s", "regretRate": "3/s", "pinnedKv": "0.54"}


@pytest.mark.parametrize(
    ("changes", "other"),
    [
        ({"cached_tokens": 635.0, "pinned_tokens": 520.0, "evicted_tokens": 1180.0}, {}),
        ({"cached_tokens": 660.0}, {"hitRate": "0.66"}),
        ({"evicted_tokens": 1500.0}, {"evictionRate": "1.5k/s"}),
        ({"ttft": Latencies((0.5, 1.0, math.inf), (10.0, 0.0, 0.0))}, {"ttftP90": "450ms"}),
    ],
    ids=["a little off", "more hits", "more evictions", "faster"],
)
def test_a_figure_is_written_anew_when_it_is_off_by_more_than_a_twentieth(
    changes: dict[str, Any], other: dict[str, str]
) -> None:
    assert seen(a_reading(**changes), former=FORMER) == {**FORMER, **other}


@pytest.mark.parametrize("former", [None, [], {"hitRate": 0.61, "ttftP90": "soon", "other": "1"}])
def test_what_nobody_of_ours_wrote_is_replaced(former: object) -> None:
    assert seen(a_reading(), former=former) == {**FORMER, "evictionRate": "1.2k/s"}
