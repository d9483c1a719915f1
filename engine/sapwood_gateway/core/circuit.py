"""The circuit of one replica: after failures in a row it rests, then one request tries it again.

What counts as a failure is `retry.is_failure`'s to say; a client's own error never does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CircuitSettings:
    """When a circuit opens, and for how long."""

    failures_to_open: int = 3
    """In a row. One lost connection is a matter of retries; three are a replica that is gone or broken."""
    rest_seconds: float = 1.0
    """The first rest; each one that a failed trial extends is twice as long."""
    longest_rest_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Closed:
    """Requests go through."""

    num_failures: int = 0


@dataclass(frozen=True, slots=True)
class Open:
    """None goes through before ``until``; then one does."""

    until: float
    num_rests: int


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """One request is trying; the others wait for what becomes of it."""

    num_rests: int


Circuit = Closed | Open | HalfOpen


def lets_through(circuit: Circuit, now: float) -> bool:
    """Tell whether a request may be sent at ``now`` (seconds, as ``until``)."""
    match circuit:
        case Closed():
            return True
        case Open(until):
            return now >= until
        case HalfOpen():
            return False


def after_begin(circuit: Circuit) -> Circuit:
    """A request that `lets_through` allowed is on its way."""
    return HalfOpen(circuit.num_rests) if isinstance(circuit, Open) else circuit


def after_success(_: Circuit) -> Circuit:
    """The replica has answered."""
    return Closed()


def after_failure(circuit: Circuit, now: float, settings: CircuitSettings) -> Circuit:
    """The replica has failed; one whose circuit is open already may fail for requests from before."""
    match circuit:
        case Closed(num_failures) if num_failures + 1 < settings.failures_to_open:
            return Closed(num_failures + 1)
        case Closed():
            return Open(now + settings.rest_seconds, 1)
        case HalfOpen(num_rests):
            rest = min(settings.rest_seconds * 2.0**num_rests, settings.longest_rest_seconds)
            return Open(now + rest, num_rests + 1)
        case Open():
            return circuit


def after_abandoned(circuit: Circuit, now: float) -> Circuit:
    """A client left before its request was answered: nothing was learned, and the next request may try."""
    return Open(now, circuit.num_rests) if isinstance(circuit, HalfOpen) else circuit
