"""Whose prompt is read next, where one is read after the other, and whose prompts are not read for a while.

Reading runs what a service hands out: a tokenizer, and a chat template, which is a program. Services take turns, so
none waits for more than one read of each other. Whose read took longer than anybody waits for rests a few times as
long, so that such reads take a small part of the time. Whose read ended the reader rests for longer each time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from sapwood_gateway.core.routes import ServiceKey

Item = TypeVar("Item")


class ServedModel(NamedTuple):
    """Whose tokenizer reads a prompt. Not the revision's alone: what another service says to be of it may not be."""

    service: ServiceKey
    revision: str


@dataclass(frozen=True, slots=True)
class RestSettings:
    """In seconds."""

    slow: float = 0.125
    """A read of more is slow: half of what a request waits for its own."""
    rests_per_slow: float = 4.0
    """So many times as long as it took."""
    first: float = 1.0
    """After a read that ended the reader; about as long as another takes to start."""
    longest: float = 600.0
    forgiven_after: float = 600.0
    """Of nothing wrong, after which the next one is the first again."""


@dataclass(slots=True)
class _Rest:
    until: float
    num_broken: int = 0


class ReadingTurns(Generic[Item]):
    """Mutable, for one thread; every ``now`` is in seconds of one clock that never goes back."""

    def __init__(self, settings: RestSettings | None = None) -> None:
        self._settings = settings or RestSettings()
        self._waiting: OrderedDict[ServiceKey, deque[Item]] = OrderedDict()
        """Nobody's line is empty; the next one is first."""
        self._rests: dict[ServiceKey, _Rest] = {}

    def add(self, service: ServiceKey, item: Item) -> None:
        """``item`` of ``service`` waits for its turn."""
        self._waiting.setdefault(service, deque()).append(item)

    def take(self) -> Item | None:
        """Return whose turn it is; None where nobody waits."""
        if not self._waiting:
            return None
        service, line = self._waiting.popitem(last=False)
        item = line.popleft()
        if line:
            self._waiting[service] = line
        return item

    def rests(self, service: ServiceKey, now: float) -> bool:
        """Whether nothing of ``service`` is read."""
        return service in self._rests and now < self._rests[service].until

    def took(self, service: ServiceKey, seconds: float, now: float) -> None:
        """A read of ``service`` has ended at ``now`` and took ``seconds``."""
        if seconds > self._settings.slow:
            rest = self._rest(service, now)
            rest.until = max(rest.until, now + seconds * self._settings.rests_per_slow)

    def broke(self, service: ServiceKey, now: float) -> None:
        """The reader ended over a read of ``service``."""
        rest = self._rest(service, now)
        # No power of a number without bound.
        pause = self._settings.first * 2 ** min(rest.num_broken, 30)
        rest.until = now + min(pause, self._settings.longest)
        rest.num_broken += 1

    def crowded(self, service: ServiceKey, now: float) -> None:
        """The reader ended over a tokenizer of ``service`` beside those of others that have more: a slow read."""
        self.took(service, self._settings.first, now)

    def _rest(self, service: ServiceKey, now: float) -> _Rest:
        """Return the rest of ``service`` to change, once what is long past is forgotten.

        Only time forgives: a service that goes and comes back would be a new one each time.
        """
        after = self._settings.forgiven_after
        self._rests = {each: rest for each, rest in self._rests.items() if now <= rest.until + after}
        return self._rests.setdefault(service, _Rest(now))
