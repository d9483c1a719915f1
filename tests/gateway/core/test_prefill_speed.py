"""How fast a replica computes prompts."""

from __future__ import annotations

import pytest

from sapwood_gateway.core.prefill_speed import MEASURED_TOKENS, TRUSTED_SAMPLES, PrefillSpeed


def speed_of(*samples: tuple[int, float]) -> float | None:
    speed = PrefillSpeed()
    for num_tokens, seconds in samples:
        speed.note(num_tokens, seconds)
    return speed.tokens_per_second


@pytest.mark.parametrize(
    ("samples", "speed"),
    [
        ([], None),
        ([(1_000, 1.0)] * (TRUSTED_SAMPLES - 1), None),
        ([(1_000, 1.0)] * TRUSTED_SAMPLES, 1_000.0),
        # A short prompt tells of connections, and a clock may stand still.
        ([(MEASURED_TOKENS - 1, 0.001)] * 10, None),
        ([(1_000, 0.0)] * 10, None),
        # A cold start does not stay, and one that had to wait unseen moves little.
        ([(1_000, 10.0), (1_000, 1.0), (1_000, 1.0)], 1_000.0),
        ([(1_000, 1.0), (1_000, 1.0), (1_000, 2.0)], 950.0),
    ],
    ids=str,
)
def test_a_speed_is_what_an_idle_replica_reached(samples: list[tuple[int, float]], speed: float | None) -> None:
    assert speed_of(*samples) == speed


def test_an_engine_that_becomes_slower_for_good_is_known_as_slow_in_the_end() -> None:
    speed = speed_of(*[(1_000, 1.0)] * 3, *[(1_000, 4.0)] * 50)
    assert speed == pytest.approx(250.0, rel=0.05)
