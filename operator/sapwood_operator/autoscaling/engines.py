"""What engines said to the operator while replicas come and go, and what is to be asked of them.

Times are Unix seconds. All of it is kept in memory alone: an operator that starts anew asks again, and asking twice
changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood_contract.http import EngineState
from sapwood_operator.autoscaling.victims import Cache


@dataclass(frozen=True, slots=True, order=True)
class Engine:
    """One pod's engine."""

    pod: str
    uid: str
    """Of the pod."""


@dataclass(frozen=True, slots=True)
class NotAsked:
    """Nobody has asked for it."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """It was asked and gave no answer, or one that cannot be used; ``why`` is for people."""

    at: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSeen:
    """What ``/admin/load`` said."""

    at: float
    """When it was asked."""
    state: EngineState
    num_requests: int
    """Running and waiting."""
    work_tokens: float
    """Of these: what they hold and what they wait for, which another engine would have to compute."""


@dataclass(frozen=True, slots=True)
class CacheSeen:
    """What ``/admin/prefixes`` said."""

    at: float
    """When it was asked."""
    cache: Cache


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeen:
    """All that is known of one engine."""

    load: LoadSeen | Unanswered | NotAsked = NotAsked()
    cache: CacheSeen | Unanswered | NotAsked = NotAsked()
    handed_over: float | None = None
    """The ``since`` of the last `HandOver` that has ended, well or not; None: none has."""
    warmed: bool = False
    """Whether it took the prefixes that a `Warm` gave it."""


NOTHING_SEEN = EngineSeen()


@dataclass(frozen=True, slots=True)
class LookAtLoad:
    """Ask each for its load."""

    engines: tuple[Engine, ...]


@dataclass(frozen=True, slots=True)
class LookAtCaches:
    """Ask each for its load and what it holds."""

    engines: tuple[Engine, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    """Give the victim's most used prefixes to those that stay."""

    victim: Engine
    since: float
    """When it was cordoned: once for each time."""
    survivors: tuple[Engine, ...]


@dataclass(frozen=True, slots=True)
class Warm:
    """Give a new engine the most used prefixes of others, and say that these are all."""

    newcomer: Engine
    sources: tuple[Engine, ...]
    """Those that are ready; none: it gets an empty list."""


EngineCall = LookAtLoad | LookAtCaches | HandOver | Warm
