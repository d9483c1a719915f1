"""Whether a request that one replica did not answer goes to another: only before the first byte of the answer.

A generation has no effect beyond its answer, so computing it a second time loses work and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FailureReason = Literal["connect", "broken", "timeout"]
"""No connection; one that ended before the answer began, or brought what is none; no first byte in time."""

RETRIED_STATUSES = frozenset({429, 502, 503, 504})
"""Answers that another replica may well not give."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How often and how soon."""

    max_attempts: int = 3
    """Each on a replica of its own."""
    first_delay_seconds: float = 0.025
    """Mean wait before the second attempt; it doubles. Short, because it is another replica that is asked."""
    longest_delay_seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Ask another replica after a while."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The client gets what the last replica said."""


def after(num_attempts: int, *, jitter: float, settings: RetrySettings) -> TryAgain | GiveUp:
    """Return what to do after ``num_attempts`` have failed in a way that is retried; ``jitter``: from [0, 1)."""
    if num_attempts >= settings.max_attempts:
        return GiveUp()
    mean = min(settings.first_delay_seconds * 2.0 ** (num_attempts - 1), settings.longest_delay_seconds)
    return TryAgain(mean * 2 * jitter)


def is_retried(status: int) -> bool:
    """Tell whether an answer with ``status`` is another replica's to better; a client's own errors never are."""
    return status in RETRIED_STATUSES


def is_failure(status: int) -> bool:
    """Tell whether ``status`` counts against the replica; a full queue (429) is honest and does not."""
    return status >= 500
