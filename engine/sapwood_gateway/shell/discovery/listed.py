"""Discovery without a cluster: engines listed by address, known by what they answer to the load poller."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from yarl import URL

from sapwood_contract.http import EngineLoad
from sapwood_contract.routing import RoutingPolicy
from sapwood_gateway.core.fleet import Fleet
from sapwood_gateway.core.listed_engines import NO_QUEUE, OPEN, ListedEngine, QueueLimits, Tenancy, routes_of
from sapwood_gateway.core.routes import Replica
from sapwood_gateway.shell.load import Heard, Silent


class ListedDiscovery:
    """Keeps the routes of ``fleet``; `heard` is the load poller's to call."""

    def __init__(
        self,
        fleet: Fleet,
        engines: Iterable[Replica],
        *,
        policy: RoutingPolicy,
        tenancy: Tenancy = OPEN,
        queue: QueueLimits = NO_QUEUE,
    ) -> None:
        self._fleet = fleet
        self._policy = policy
        self._tenancy = tenancy
        self._queue = queue
        self._engines = {replica.id: ListedEngine(replica) for replica in engines}
        self._unasked = set(self._engines)

    @property
    def is_ready(self) -> bool:
        """Every engine of the list has been asked once."""
        return not self._unasked

    @property
    def replicas(self) -> list[Replica]:
        """Return all that are listed, also those that are away."""
        return [engine.replica for engine in self._engines.values()]

    def heard(self, replica: Replica, said: Heard) -> None:
        """Take in what an engine says of itself; one that nobody answers for takes no requests until it is back."""
        are_all_old = (
            not self.is_ready
        )  # as long as some have not been asked, nothing tells which became ready just now
        self._unasked.discard(replica.id)
        before = self._engines[replica.id]
        if isinstance(said, EngineLoad):
            after = ListedEngine(replica, said.model, is_ready=said.state == "ready")
        elif isinstance(said, Silent):
            after = before
        else:
            after = replace(before, is_ready=False)
        if after != before:
            self._engines[replica.id] = after
            routes = routes_of(self._engines.values(), self._policy, self._tenancy, self._queue)
            self._fleet.update(routes, are_all_old=are_all_old)


def listed_replica(url: URL, admin_url: URL) -> Replica:
    """Return the replica at two addresses."""
    return Replica(id=str(url), name=url.authority, url=str(url), admin_url=str(admin_url))
