"""The greatest number of late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sapwood_gateway.core.recent_greatest import RecentGreatest


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 100))), st.floats(0, 20))
def test_it_is_the_greatest_of_those_that_are_not_too_old(noted: list[tuple[float, float]], later: float) -> None:
    recent, now, values = RecentGreatest(10.0), 0.0, []
    for pause, value in noted:
        now += pause
        recent.note(value, now)
        values.append((now, value))
        assert recent.at(now) == max(each for at, each in values if at >= now - 10.0)
    now += later
    assert recent.at(now) == max((each for at, each in values if at >= now - 10.0), default=0.0)


def test_a_steady_stream_of_small_numbers_takes_no_memory() -> None:
    recent = RecentGreatest(10.0)
    for _ in range(1_000):
        recent.note(1.0, 0.0)
    assert len(recent._kept) == 1
