"""A run of steps that are all planned alike, so that their times have a closed form.

Decodes grow by a key a step and prefills go on by the same number of tokens, so the seconds of the first ``n`` steps
are a polynomial of the second degree in ``n``. A replay pays for runs, not for steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sapwood_engine.core.prefill_share import Prefill
from sapwood_tools.replay.latency import StepSeconds

Job = TypeVar("Job")

_DRIFT = 0.05
"""What a step affords of prefill may change so much, relative to itself, before it is reckoned anew."""


@dataclass(slots=True)
class StepRun(Generic[Job]):
    """``num_steps`` steps from ``begin`` on; may be cut while none of the steps that go has begun."""

    begin: float
    num_steps: int
    first: float
    """The n-th end is ``begin + n * (first + n * growth)``."""
    growth: float
    num_decodes: int
    prefills: list[tuple[Job, int]]
    """Who prefills, and how many tokens in each step."""
    computed: list[Job] = field(default_factory=list)
    """Whose prompts are computed whole with its last step; known once it is scheduled, as are the next two."""
    ended: list[Job] = field(default_factory=list)
    is_scheduled: bool = False
    """Its last step has begun, so that it can be cut no more."""

    @property
    def seconds(self) -> float:
        """Return how long all its steps take."""
        return self.num_steps * (self.first + self.num_steps * self.growth)

    @property
    def end(self) -> float:
        """Return when its last step ends."""
        return self.begin + self.num_steps * (self.first + self.num_steps * self.growth)

    def step_at(self, now: float) -> int:
        """Return which step, from 1 on, computes at ``now``, which is at or behind ``begin``; the last one later on."""
        passed = max(0.0, now - self.begin)
        # The positive root, in the form that stands a growth of 0.
        steps = 2 * passed / (self.first + math.sqrt(self.first * self.first + 4 * self.growth * passed))
        return min(self.num_steps, int(steps) + 1)


def run_of(
    seconds: StepSeconds, begin: float, *, num_decodes: int, decode_keys: float, prefills: list[tuple[Job, int, int]]
) -> StepRun[Job]:
    """Return a run of one step; who makes it longer says so by `StepRun.num_steps`.

    ``decode_keys``: read in the first step; ``prefills``: who, from which position on, how many tokens in each step.
    """
    tokens, keys, squares = 0, 0.0, 0
    for _, start, share in prefills:
        tokens += share
        keys += share * (start + 0.5)
        squares += share * share
    first = (
        seconds.base
        + seconds.decode * num_decodes
        + seconds.decode_key * (decode_keys - num_decodes / 2)
        + seconds.prefill_token * tokens
        + seconds.prefill_key * keys
    )
    growth = (seconds.decode_key * num_decodes + seconds.prefill_key * squares) / 2
    return StepRun(begin, 1, first, growth, num_decodes, [(job, share) for job, _, share in prefills])


def steps_alike(
    seconds: StepSeconds, prefills: Sequence[Prefill], shares: Sequence[int], *, num_decodes: int, allowance: float
) -> int:
    """Return how many steps in a row may have ``shares``, at least 1: until a prompt has less than its share left,
    another is the nearest to its end, or what ``allowance`` seconds afford has changed.
    """
    most = min(prefill.num_left // share for prefill, share in zip(prefills, shares, strict=True) if share)
    if len(prefills) > 1:
        most = min(most, _steps_in_order(prefills, shares))
    if allowance < math.inf and most > 1:
        drift = seconds.decode_key * num_decodes / allowance
        for prefill, share in zip(prefills, shares, strict=True):
            if share:
                token = seconds.prefill_token + seconds.prefill_key * prefill.start
                drift = max(drift, seconds.prefill_key * share / token if token else 0.0)
        if drift * most > _DRIFT:
            most = int(_DRIFT / drift)
    return max(1, most)


def _steps_in_order(prefills: Sequence[Prefill], shares: Sequence[int]) -> int:
    """Return after how many steps another order of what is left begins; a great number where none does."""
    most = 1 << 30
    left = sorted((prefill.num_left, share) for prefill, share in zip(prefills, shares, strict=True))
    for (nearer, less), (further, more) in itertools.pairwise(left):
        if more > less:
            most = min(most, (further - nearer) // (more - less))
    return max(1, most)
