"""What a step costs on this machine: a model of its seconds, fitted while the engine serves.

::

    seconds = a * prefill tokens + b * keys they read + c * decodes + d * keys they read + base

The five costs, none of them negative, are those with the least sum of squared errors over the steps seen, where

- *an error is relative* to the longer of what was expected and what was measured: short steps count as much as long
  ones, and one that took ten times as long because a neighbour was busy counts a hundredth;
- *what is old is forgotten*, with every step a little, and most of it when two steps in a row are far from what was
  expected, on the same side: then the machine has changed. Decodes and steps with a prefill are forgotten apart, so
  that an hour of decodes does not wear away what is known of prefills;
- *before the first observation* everything costs nothing, so nobody is held back by a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import mul

from sapwood_contract.metrics import STEP_COSTS

_NUM_COSTS = len(STEP_COSTS)
_KEPT = 0.95
"""What is left of what was known when another step is seen: some 20 steps are remembered. Fewer would follow noise."""
_KEPT_AFTER_CHANGE = 0.3
_FAR = 1.5
"""A step is far from what was expected if it took so many times as long, or the other way about: noise and the error of
the formula are within that, another program on the same cores is beyond."""
_SWEEPS = 2
"""Rounds over the five costs in a fit. It starts from the fit before: more make the first ten steps' predictions
slightly better, and no others."""
_LEAST_STEPS = 10
"""From so few steps with a part its cost is told apart from the others' by chance alone."""
_TOO_OLD = 1e-9
"""A sum of squares below this is of steps forgotten so long ago that dividing by it would make a cost of rounding."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """The numbers of a step that its seconds depend on."""

    num_decodes: int
    decode_keys: int
    """Keys read by all decodes together."""
    prefill_tokens: int = 0
    prefill_keys: int = 0
    """Keys read by all prefilled tokens together, a key that several read counted for each."""

    def amounts(self) -> tuple[int, ...]:
        """What each cost is multiplied with, in the order of the formula, which is that of `STEP_COSTS`."""
        return self.prefill_tokens, self.prefill_keys, self.num_decodes, self.decode_keys, 1


def chunk_keys(start: int, num_tokens: int) -> int:
    """Return the keys that a chunk reads: its token at ``position`` reads ``position + 1``."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


class _Seen:
    """Steps of one kind, summed up: their amounts' products with each other and with their seconds."""

    __slots__ = ("products", "side", "squares")

    def __init__(self) -> None:
        self.squares = [[0.0] * _NUM_COSTS for _ in range(_NUM_COSTS)]
        self.products = [0.0] * _NUM_COSTS
        self.side = 0
        """Of the last step: 1 if it took far longer than expected, -1 if far shorter, else 0."""

    def add(self, work: StepWork, seconds: float, *, predicted: float) -> None:
        side = (seconds > _FAR * predicted) - (seconds * _FAR < predicted)
        kept = _KEPT_AFTER_CHANGE if side and side == self.side else _KEPT
        self.side = side
        longer = max(seconds, predicted)
        amounts = [amount / longer for amount in work.amounts()]
        for row, amount in zip(self.squares, amounts, strict=True):
            row[:] = [kept * square + amount * other for square, other in zip(row, amounts, strict=True)]
        share = seconds / longer
        self.products = [kept * old + share * amount for old, amount in zip(self.products, amounts, strict=True)]


class StepCosts:
    """The fitted costs, in seconds. Every method is O(1)."""

    def __init__(self, known: Sequence[float] = (0.0,) * _NUM_COSTS) -> None:
        """``known``: what to begin with, in the order of `StepWork.amounts`; a replay observes nothing."""
        self._costs = list(known)
        self._decodes = _Seen()
        self._prefills = _Seen()
        self._num_steps = self._num_prefills = self._num_decodes = 0

    def known(self) -> dict[str, float]:
        """Return the seconds of each part that was seen often enough, by its name in `STEP_COSTS`."""
        num_seen = (self._num_prefills, self._num_prefills, self._num_decodes, self._num_decodes, self._num_steps)
        return {
            name: cost
            for name, cost, num_steps in zip(STEP_COSTS, self._costs, num_seen, strict=True)
            if num_steps >= _LEAST_STEPS
        }

    def predict(self, work: StepWork) -> float:
        """Return the seconds that a step of ``work`` should take; 0 before the first observation."""
        return _dot(self._costs, work.amounts())

    def prefill_seconds(self, start: int, num_tokens: int) -> float:
        """Return what a chunk of ``num_tokens`` from position ``start`` on adds to a step."""
        return self._costs[0] * num_tokens + self._costs[1] * chunk_keys(start, num_tokens)

    def affordable_tokens(self, start: int, seconds: float, *, most: int) -> int:
        """Return how many tokens, 0 to ``most``, a chunk from position ``start`` on adds within ``seconds`` >= 0."""
        if self.prefill_seconds(start, most) <= seconds:
            return most
        # The positive root of `prefill_seconds` = ``seconds``, in the form that stands a key's cost of 0.
        key = self._costs[1]
        first = self._costs[0] + key * (start + 0.5)
        return int(2 * seconds / (first + math.sqrt(first * first + 2 * key * seconds)))

    def observe(self, work: StepWork, seconds: float) -> None:
        """Take in that a step of ``work`` took ``seconds``; ignored where these are not a positive number."""
        if not 0.0 < seconds < math.inf:
            return
        seen = self._prefills if work.prefill_tokens else self._decodes
        seen.add(work, seconds, predicted=self.predict(work))
        self._num_steps += 1
        self._num_prefills += work.prefill_tokens > 0
        self._num_decodes += work.num_decodes > 0
        self._fit()

    def _fit(self) -> None:
        """Coordinate descent: each cost in turn becomes the best one beside the others, or 0."""
        products = [a + b for a, b in zip(self._prefills.products, self._decodes.products, strict=True)]
        squares = [
            [a + b for a, b in zip(one, other, strict=True)]
            for one, other in zip(self._prefills.squares, self._decodes.squares, strict=True)
        ]
        costs = self._costs
        for _ in range(_SWEEPS):
            for index, (row, product) in enumerate(zip(squares, products, strict=True)):
                own = row[index]
                if own > _TOO_OLD:
                    costs[index] = max(0.0, costs[index] + (product - _dot(row, costs)) / own)


def _dot(one: Iterable[float], other: Iterable[float]) -> float:
    total: float = sum(map(mul, one, other))
    return total
