"""The Lease that makes one operator of several the leader: read, taken, renewed and released.

The kubernetes package brings an election of its own; it compares wall clocks, prints, ends only with its process and
cannot release, so the deciding is in `election` and the calls are here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from kubernetes.client import ApiClient

from sapwood_operator.adapters.cluster import CONNECT_SECONDS, call
from sapwood_operator.adapters.election import Candidate, Create, LeaveAlone, NoLease, SeenLease, Take, Terms
from sapwood_operator.adapters.kinds import LEASES
from sapwood_operator.adapters.outcomes import Absent, Done, Outcome

_log = logging.getLogger(__name__)


class LeaseStore(Protocol):
    """Where a Lease is kept. Blocking."""

    def read(self) -> Outcome:
        """Return the Lease, or `Absent`."""

    def create(self, spec: dict[str, Any]) -> Outcome:
        """Create it; not `Done` where it exists by now."""

    def replace(self, spec: dict[str, Any], version: str) -> Outcome:
        """Replace its spec; not `Done` where its version is another by now."""


class ClusterLease:
    """A Lease object of the cluster."""

    def __init__(self, client: ApiClient, *, namespace: str, name: str, request_timeout_seconds: float) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._timeout = (CONNECT_SECONDS, request_timeout_seconds)

    def read(self) -> Outcome:
        """See `LeaseStore`."""
        return self._call("GET", LEASES.path(self._namespace, self._name), None)

    def create(self, spec: dict[str, Any]) -> Outcome:
        """See `LeaseStore`."""
        return self._call("POST", LEASES.collection(self._namespace), self._lease(spec))

    def replace(self, spec: dict[str, Any], version: str) -> Outcome:
        """See `LeaseStore`."""
        return self._call("PUT", LEASES.path(self._namespace, self._name), self._lease(spec, resourceVersion=version))

    def _lease(self, spec: dict[str, Any], **metadata: str) -> dict[str, Any]:
        about = {"namespace": self._namespace, "name": self._name, **metadata}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": about, "spec": spec}

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Outcome:
        return call(self._client, method, path, query={}, body=body, timeout=self._timeout)


class Leadership:
    """One candidate's claim to a Lease."""

    def __init__(
        self, store: LeaseStore, *, identity: str, terms: Terms, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """``now`` dates the Lease for people; what counts is the event loop's clock."""
        self._store = store
        self._identity = identity
        self._terms = terms
        self._now = now
        self._candidate = Candidate(identity)
        self._holder = ""
        self._renewed_at = 0.0

    async def acquire(self) -> None:
        """Return once this candidate is the leader."""
        while not await self._try():  # noqa: ASYNC110  # nobody tells when a lease is free
            await asyncio.sleep(self._terms.retry_seconds)  # nobody tells when a lease is free
        _log.info("leading", extra={"identity": self._identity})

    async def hold(self) -> None:
        """Renew for as long as that works; return when leadership is lost."""
        clock = asyncio.get_running_loop().time
        while True:
            deadline = self._renewed_at + self._terms.renew_within_seconds
            await asyncio.sleep(min(self._terms.retry_seconds, max(0.0, deadline - clock())))
            try:
                async with asyncio.timeout_at(deadline):
                    renewed = await self._try()
            except TimeoutError:
                return
            if not renewed and (self._holder != self._identity or clock() >= deadline):
                return

    async def release(self) -> None:
        """Let another candidate lead at once; does nothing where the Lease is not held by this one."""
        lease = await asyncio.to_thread(self._store.read)
        seen = _seen(lease)
        if isinstance(seen, SeenLease) and seen.holder == self._identity:
            await asyncio.to_thread(self._store.replace, self._spec("", lease), seen.version)

    async def _try(self) -> bool:
        """Read the Lease and do what is decided; whether this candidate holds it now."""
        clock = asyncio.get_running_loop().time
        began = clock()
        lease = await asyncio.to_thread(self._store.read)
        if not isinstance(lease, Done | Absent):
            _log.warning("the lease cannot be read", extra={"reason": lease.reason, "detail": lease.message})
            return False
        decision = self._candidate.decide(_seen(lease), clock())
        match decision:
            case LeaveAlone(holder):
                self._note_holder(holder)
                return False
            case Create():
                written = await asyncio.to_thread(self._store.create, self._spec(self._identity, lease))
            case Take(version):
                written = await asyncio.to_thread(self._store.replace, self._spec(self._identity, lease), version)
        if isinstance(written, Done):
            # Others count from when they saw the write, which is later than when it began.
            self._renewed_at = began
            self._holder = self._identity
        return isinstance(written, Done)

    def _note_holder(self, holder: str) -> None:
        if holder != self._holder:
            self._holder = holder
            _log.info("another operator leads", extra={"holder": holder})

    def _spec(self, holder: str, lease: Outcome) -> dict[str, Any]:
        """The spec to write over ``lease``: when it was acquired and how often it changed hands are kept for people."""
        old: dict[str, Any] = dict(lease.body["spec"]) if isinstance(lease, Done) else {}
        changed = old.get("holderIdentity") != holder
        now = self._now().isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": self._terms.duration_seconds,
            "acquireTime": now if changed else old.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions", 0)) + (1 if changed and holder else 0),
        }


def _seen(lease: Outcome) -> SeenLease | NoLease:
    if not isinstance(lease, Done):
        return NoLease()
    spec = lease.body.get("spec", {})
    return SeenLease(
        holder=spec.get("holderIdentity") or "",
        duration_seconds=float(spec.get("leaseDurationSeconds") or 0),
        version=lease.body["metadata"]["resourceVersion"],
    )
