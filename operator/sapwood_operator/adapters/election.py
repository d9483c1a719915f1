"""Leader election, decided: whether to take, renew or leave alone the Lease that was read.

Times are the candidate's own monotonic clock in seconds; the times in the Lease are for people. A candidate takes over
only what it has itself seen unchanged for the whole duration that the holder promised, so clocks need not agree, only
run at about the same speed (as in client-go's leaderelection).

The invariant: a holder that cannot renew gives up after `Terms.renew_within_seconds`, which is less than the duration
that the others wait, counted from before its last successful write.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a Lease holds."""

    duration_seconds: int = 15
    """Others wait so long after they saw the last renewal."""

    @property
    def renew_within_seconds(self) -> float:
        """Without a renewal for so long the holder gives up."""
        return self.duration_seconds * 2 / 3

    @property
    def retry_seconds(self) -> float:
        """Between two tries, to renew or to take."""
        return self.duration_seconds / 7.5


@dataclass(frozen=True, slots=True)
class NoLease:
    """The Lease does not exist yet."""


@dataclass(frozen=True, slots=True)
class SeenLease:
    """The Lease as it was read; ``holder`` is empty where it was released."""

    holder: str
    duration_seconds: float
    version: str


@dataclass(frozen=True, slots=True)
class Create:
    """Create the Lease, as its holder."""


@dataclass(frozen=True, slots=True)
class Take:
    """Write oneself into the Lease, provided that it still has this ``version``."""

    version: str


@dataclass(frozen=True, slots=True)
class LeaveAlone:
    """Somebody else holds it."""

    holder: str


class Candidate:
    """What one candidate remembers between two looks at the Lease."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._seen: SeenLease | NoLease = NoLease()
        self._seen_first = 0.0

    def decide(self, lease: SeenLease | NoLease, now: float) -> Create | Take | LeaveAlone:
        """Decide what to do about the Lease that was just read."""
        if isinstance(lease, NoLease):
            return Create()
        if lease != self._seen:
            self._seen, self._seen_first = lease, now
        unchanged_seconds = now - self._seen_first
        if lease.holder in ("", self._identity) or unchanged_seconds >= lease.duration_seconds:
            return Take(lease.version)
        return LeaveAlone(lease.holder)
