"""A start's times are read from the engine's own metrics, and held against their bars."""

from __future__ import annotations

import pytest

from start_times import StartTimes, judge_starts, phases_of

_METRICS = """\
# TYPE sapwood_startup_seconds gauge
sapwood_startup_seconds{phase="load"} 1.25
sapwood_startup_seconds{phase="compile"} 0.5
sapwood_steps_total 3.0
"""


def test_phases_come_from_the_metrics() -> None:
    assert phases_of(_METRICS) == {"load": 1.25, "compile": 0.5}


@pytest.mark.parametrize(
    ("cold_seconds", "kernel_seconds", "answer_seconds", "holds"),
    [(60, 1, 3, True), (61, 1, 3, False), (60, 1.1, 3, False), (60, 1, 3.1, False)],
)
def test_each_time_has_its_bar(
    cold_seconds: float,
    kernel_seconds: float,
    answer_seconds: float,
    holds: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cold = StartTimes(70.0, 70.1, {"compile": cold_seconds})
    warm = [StartTimes(2.9, answer_seconds, {"compile": kernel_seconds})]
    assert judge_starts(cold, warm, [1.5]) is holds
    assert '"name": "a start with kernels: to its first answer, over importing torch"' in capsys.readouterr().out
