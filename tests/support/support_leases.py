"""A Lease in memory, and what every store of a Lease must do (`sapwood_operator.adapters.lease.LeaseStore`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sapwood_operator.adapters.lease import LeaseStore
from sapwood_operator.adapters.outcomes import Absent, Done, Outcome, Retry

UNREACHABLE = Retry("Unreachable", "no route")


class MemoryLease:
    """One Lease with optimistic concurrency."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] | None = None
        self.version = 0

    def read(self) -> Outcome:
        if self.spec is None:
            return Absent()
        return Done({"metadata": {"resourceVersion": str(self.version)}, "spec": dict(self.spec)})

    def create(self, spec: dict[str, Any]) -> Outcome:
        if self.spec is not None:
            return Retry("AlreadyExists", "there is one")
        return self._write(spec)

    def replace(self, spec: dict[str, Any], version: str) -> Outcome:
        if self.spec is None or version != str(self.version):
            return Retry("Conflict", "it was changed")
        return self._write(spec)

    def _write(self, spec: dict[str, Any]) -> Outcome:
        self.spec, self.version = dict(spec), self.version + 1
        return self.read()


class CutOff:
    """A view of a Lease that can be cut off from it, as by a network."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self.cut = False

    def read(self) -> Outcome:
        return UNREACHABLE if self.cut else self._store.read()

    def create(self, spec: dict[str, Any]) -> Outcome:
        return UNREACHABLE if self.cut else self._store.create(spec)

    def replace(self, spec: dict[str, Any], version: str) -> Outcome:
        return UNREACHABLE if self.cut else self._store.replace(spec, version)


def lease_spec(holder: str) -> dict[str, Any]:
    return {"holderIdentity": holder, "leaseDurationSeconds": 15}


def _version(outcome: Outcome) -> str:
    assert isinstance(outcome, Done), outcome
    return str(outcome.body["metadata"]["resourceVersion"])


def a_missing_lease_is_absent(store: LeaseStore) -> None:
    assert store.read() == Absent()


def a_lease_that_was_created_is_read(store: LeaseStore) -> None:
    store.create(lease_spec("a"))
    found = store.read()
    assert isinstance(found, Done)
    assert found.body["spec"]["holderIdentity"] == "a"


def a_second_creation_is_not_done(store: LeaseStore) -> None:
    store.create(lease_spec("a"))
    assert not isinstance(store.create(lease_spec("b")), Done)


def a_replacement_needs_the_version_that_was_read(store: LeaseStore) -> None:
    first = _version(store.create(lease_spec("a")))
    second = _version(store.replace(lease_spec("b"), first))
    assert second != first
    assert not isinstance(store.replace(lease_spec("c"), first), Done)
    assert isinstance(store.replace(lease_spec("c"), second), Done)


LEASE_STORE_RULES: tuple[Callable[[LeaseStore], None], ...] = (
    a_missing_lease_is_absent,
    a_lease_that_was_created_is_read,
    a_second_creation_is_not_done,
    a_replacement_needs_the_version_that_was_read,
)
"""Each takes a store without a Lease. e2e runs them against a real API server."""
