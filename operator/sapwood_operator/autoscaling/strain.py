"""How near what users wait comes to what they are promised, and whether replicas would change it.

What a request takes that is alone is not counted, for replicas take nothing of it away; and a latency asks for a
replica, or keeps one, only where the model says that replicas shorten it (`capacity.LEAST_GAIN`). A promise that a
request alone cannot meet asks for nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sapwood_operator.autoscaling.capacity import LEAST_GAIN
from sapwood_operator.autoscaling.situation import Situation

HIGH = 0.55
LOW = 0.40
"""Between the two nothing moves."""
_MOST_CORRECTION = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Strain:
    """One promise, of which something is measured."""

    what: str
    measured_seconds: float
    least_seconds: float
    """It is surely so long."""
    promised_seconds: float
    alone_seconds: float
    """What a request takes that is alone; less than what is promised."""
    added_below: float
    """What one replica fewer would add to it."""
    gain: float
    """What a quarter more replicas would take away, in shares of the promise."""
    gain_below: float
    """The same with one replica fewer."""

    @property
    def share(self) -> float:
        """Return how much of what is promised beyond a request's own time is used up."""
        return self._share_of(self.measured_seconds)

    @property
    def asks_for_more(self) -> bool:
        """Whether a replica should be added for it."""
        return self.share > HIGH and self.gain >= LEAST_GAIN

    @property
    def is_sure(self) -> bool:
        """Whether that is no chance of one minute."""
        return self._share_of(self.least_seconds) > HIGH and self.gain >= 2.0 * LEAST_GAIN

    @property
    def forbids_fewer(self) -> bool:
        """Whether a replica may not go because of it."""
        if self.gain_below < LEAST_GAIN:
            return False
        return self.share >= LOW or self._share_of(self.measured_seconds + self.added_below) > HIGH

    def _share_of(self, seconds: float) -> float:
        room = self.promised_seconds - self.alone_seconds
        return max(0.0, seconds - self.alone_seconds) / room


def strains(situation: Situation) -> tuple[Strain, ...]:
    """Return one for each promise of which something is measured and that a request alone keeps."""
    policy, load, capacity, base = situation.policy, situation.load, situation.capacity, situation.base
    now, below = capacity.at(max(1, base)), capacity.at(max(1, base - 1))
    both = (
        _strain(
            "the first token",
            (policy.ttft_p90_seconds, load.ttft_p90_seconds, now.alone_seconds, load.ttft_least_seconds),
            (below.ttft_p90_seconds, now.ttft_p90_seconds),
            (capacity.ttft_gain(base - 1), capacity.ttft_gain(base)),
        ),
        _strain(
            "a token",
            (policy.itl_p90_seconds, load.itl_p90_seconds, now.single_itl_seconds, load.itl_least_seconds),
            (below.itl_seconds, now.itl_seconds),
            (capacity.itl_gain(base - 1), capacity.itl_gain(base)),
        ),
    )
    return tuple(each for each in both if each is not None)


def _strain(
    what: str,
    seconds: tuple[float | None, float | None, float | None, float | None],
    predicted: tuple[float | None, float | None],
    gains: tuple[float, float],
) -> Strain | None:
    """``seconds``: promised, measured, alone; ``predicted`` and ``gains`` with one replica fewer and with as many."""
    promised, measured, alone, least = seconds
    if promised is None or measured is None or (alone is not None and alone >= promised):
        return None
    below, now = predicted
    factor = 1.0
    if now is not None and 0 < now < math.inf:
        # Where the model is too hopeful, a replica does more than it says.
        factor = min(_MOST_CORRECTION, max(1.0, measured / now))
    if below is None or now is None or below == math.inf:
        added = promised
    else:
        added = below - now
    return Strain(
        what=what,
        measured_seconds=measured,
        least_seconds=least or 0.0,
        promised_seconds=promised,
        alone_seconds=alone or 0.0,
        added_below=factor * added,
        gain=factor * gains[1],
        gain_below=factor * gains[0],
    )
