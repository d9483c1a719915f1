"""What the gateway knows of every replica: the routes as discovered, and what it saw and heard itself.

Invariants: what discovery and polls say never changes the count of our own requests; a replica that has gone is
forgotten once its last request has ended. One that becomes ready beside others that are, starts slowly
(`core.slow_start`), once: from the first request on that could go to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sapwood_gateway.core import circuit as circuits
from sapwood_gateway.core.affinity import NO_SHARES, Reason
from sapwood_gateway.core.balance import (
    NO_REPORT,
    Fitness,
    NoReplica,
    Report,
    Standing,
    able,
    by_load,
    fitness,
    is_former,
    with_room,
)
from sapwood_gateway.core.block_names import Naming
from sapwood_gateway.core.circuit import Circuit, CircuitSettings, Closed, Open
from sapwood_gateway.core.prefix_affinity import Prompt
from sapwood_gateway.core.prefix_routing import Placed, PrefixRouting
from sapwood_gateway.core.routes import Replica, Routes, Service, ServiceKey
from sapwood_gateway.core.slow_start import Newcomers, weighed

RouteReason = Reason | Literal["round_robin"]
"""What a replica was chosen for."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A request's place on a replica, from `Fleet.begin` to `Fleet.end`."""

    replica: Replica
    is_trial: bool
    """It is the one request that finds out whether a rested replica is well again."""
    reason: RouteReason
    placed: Placed | None
    """What is to be told to `Fleet.prefixes` of it; None where prefix affinity did not decide."""
    num_candidates: int
    """Replicas that could have taken the request."""

    @property
    def is_by_prefix(self) -> bool:
        """Whether nobody holds more of the prompt, as far as it is known; its session's replica is taken to."""
        return self.placed is not None and self.reason != "spill"


_CLOSED = Closed()


class Fleet:
    """Mutable, for one thread; every ``now`` is in seconds of one clock that never goes back."""

    def __init__(self, *, circuit: CircuitSettings, first_turn: int = 0) -> None:
        """``first_turn``: where the turns begin, so that several gateways do not all begin at one replica."""
        self._circuit_settings = circuit
        self._turn = first_turn
        self._routes = Routes()
        self.prefixes = PrefixRouting()
        """Who holds what, of the services that are routed by it."""
        self._known: frozenset[str] = frozenset()
        """Ids of the replicas in the routes."""
        self._num_own: Counter[str] = Counter()
        self._gone: dict[str, tuple[ServiceKey, Replica]] = {}
        """Replicas that are in the routes no more and have requests of ours."""
        self._newcomers = Newcomers()
        self._reports: dict[str, Report] = {}
        self._circuits: dict[str, Circuit] = {}
        self._standings: dict[str, Standing] = {}
        """What `standing` made of the above, until something of it changes."""
        self._changed: Callable[[], None] = lambda: None

    def watch(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` after everything that may let a request in that was not let in before."""
        self._changed = changed

    @property
    def routes(self) -> Routes:
        """The routes as last discovered, with the models of former revisions that replicas still speak of."""
        return self._routes

    @property
    def num_own(self) -> int:
        """Requests on their way to replicas, all together."""
        return self._num_own.total()

    def update(self, routes: Routes, *, are_all_old: bool = False) -> None:
        """Replace what discovery says, and forget what was learned of replicas that are not in it.

        ``are_all_old``: whoever is ready has been so before, as far as can be known; so nobody starts slowly.
        """
        self._known = frozenset(replica.id for replica in routes.all_replicas())
        self._follow_gone()
        ready = [_ready(routes.of(key)) for key in routes.services]
        self._newcomers.update(ready, known=self._known, are_all_old=are_all_old)
        self._reports = {id_: report for id_, report in self._reports.items() if id_ in self._known}
        self._circuits = {id_: circuit for id_, circuit in self._circuits.items() if id_ in self._known}
        self._standings.clear()
        returned = _cordoned(self._routes) - _cordoned(routes)
        self._routes = self._with_former_models(routes)
        self._follow_prefixes()
        for id_ in returned:
            self.prefixes.level(id_)
        self._changed()

    def begin(
        self,
        key: ServiceKey,
        model: str,
        *,
        tried: Collection[str],
        now: float,
        prompts: Mapping[Naming, Prompt] | None = None,
    ) -> Lease | NoReplica:
        """Pick the replica for a request for a service's model and count it there until `end`.

        Where the service lets requests wait, a full replica takes none, but for one that others have refused already.
        ``tried``: ids of replicas that are left out. ``prompts``: the request's, by how replicas name blocks
        (`PrefixRouting.namings`); None or empty where it could not be read.
        """
        service = self._routes.services.get(key)
        if service is None:
            return NoReplica(())
        fit = self._able(service, model, tried, now)
        if isinstance(fit, NoReplica):
            return fit
        picked, reason, placed = self._choose(service, fit, prompts or {}, self._shares(fit, now))
        self._turn += 1
        self._num_own[picked.id] += 1
        before = self._circuit(picked.id)
        self._circuits[picked.id] = circuits.after_begin(before)
        self._standings.pop(picked.id, None)
        return Lease(picked, is_trial=isinstance(before, Open), reason=reason, placed=placed, num_candidates=len(fit))

    def can_begin(self, key: ServiceKey, model: str, *, now: float) -> bool:
        """Tell whether `begin` would find a replica for a request that has been to none."""
        service = self._routes.services.get(key)
        return service is not None and not isinstance(self._able(service, model, (), now), NoReplica)

    def end(self, lease: Lease, *, now: float) -> None:
        """A request that `begin` counted is over, however it went; a trial that nothing was heard of is taken back."""
        id_ = lease.replica.id
        assert self._num_own[id_] > 0, f"{id_} has no request to end"
        self._num_own[id_] -= 1
        if self._num_own[id_] == 0:
            del self._num_own[id_]
            self._gone.pop(id_, None)
        if lease.is_trial and id_ in self._circuits:
            self._circuits[id_] = circuits.after_abandoned(self._circuits[id_], now)
        self._standings.pop(id_, None)
        self._changed()

    def succeeded(self, replica_id: str) -> None:
        """A replica has answered: its circuit closes."""
        if replica_id in self._circuits:
            self._circuits[replica_id] = circuits.after_success(self._circuits[replica_id])
            self._standings.pop(replica_id, None)
            self._changed()

    def failed(self, replica_id: str, *, now: float) -> None:
        """A replica has failed; enough of it in a row opens its circuit."""
        if replica_id in self._circuits:
            self._circuits[replica_id] = circuits.after_failure(self._circuits[replica_id], now, self._circuit_settings)
            self._standings.pop(replica_id, None)

    def reported(self, replica_id: str, report: Report) -> None:
        """Keep what a replica says of itself until it says something else; one that is not known is ignored."""
        if replica_id in self._known:
            before = self._reports.get(replica_id, NO_REPORT)
            self._reports[replica_id] = report
            self._standings.pop(replica_id, None)
            if report.model != before.model:
                self._routes = self._with_former_models(self._routes)
            if report.cache != before.cache:
                self._follow_prefixes()
            self._changed()

    def unreachable(self, replica_id: str) -> None:
        """Nobody listens there: what its cache held is gone with it, or told anew."""
        if replica_id in self._reports:
            self.reported(replica_id, replace(self._reports[replica_id], cache=None))

    def num_own_on(self, replica_id: str) -> int:
        """Our own requests on one replica."""
        return self._num_own[replica_id]

    def num_own_by_name(self, key: ServiceKey) -> Counter[str]:
        """Return our own requests on the replicas of one service, by their names.

        Those without any are there too, and those that have gone for as long as requests of theirs have not ended.
        """
        found: Counter[str] = Counter()
        gone = (replica for service, replica in self._gone.values() if service == key)
        for replica in (*self._routes.of(key), *gone):
            found[replica.name] += self._num_own[replica.id]
        return found

    def standing(self, replica: Replica) -> Standing:
        """Return all that a decision may weigh about ``replica``."""
        id_ = replica.id
        known = self._standings.get(id_)
        if known is None or known.replica is not replica:
            known = self._standings[id_] = self._standing(replica)
        return known

    def census(self, now: float) -> Counter[Fitness]:
        """Count the replicas of all services by whether they can take requests."""
        return Counter(fitness(self.standing(each), tried=(), now=now) for each in self._routes.all_replicas())

    def check_invariants(self) -> list[str]:
        """Return what is wrong inside, for tests; empty where nothing is."""
        faults = [f"{id_} has {num} requests" for id_, num in self._num_own.items() if num <= 0]
        faults += [f"{id_} is kept as gone" for id_ in self._gone if id_ in self._known or not self._num_own[id_]]
        faults += self._newcomers.check_invariants(self._known)
        faults += [f"{id_} is gone but reported" for id_ in self._reports if id_ not in self._known]
        faults += [f"{id_} is gone but has a circuit" for id_ in self._circuits if id_ not in self._known]
        faults += [
            f"{id_} stands as it did" for id_, one in self._standings.items() if one != self._standing(one.replica)
        ]
        return faults + self.prefixes.check_invariants()

    def _able(self, service: Service, model: str, tried: Collection[str], now: float) -> list[Standing] | NoReplica:
        known = self._standings
        standings = [
            one if (one := known.get(each.id)) is not None and one.replica is each else self.standing(each)
            for each in self._routes.of(service.key)
        ]
        fit = able(standings, service, model, tried=tried, now=now)
        if service.queue_max_requests and not tried and not isinstance(fit, NoReplica):
            return with_room(fit)
        return fit

    def _shares(self, fit: Sequence[Standing], now: float) -> Mapping[str, float]:
        """Return the shares of those that start slowly; a replica whose first request this may be begins with it.

        None does where all others are full, or there are no others: what it can take it is given then.
        """
        if self._newcomers.are_none:
            return NO_SHARES
        for id_ in self._newcomers.begin({each.replica.id for each in fit}, now):
            self.prefixes.level(id_)
        shares = self._newcomers.shares(now)
        has_room = any(each.replica.id not in shares and not each.is_full for each in fit)
        return shares if has_room else NO_SHARES

    def _choose(
        self,
        service: Service,
        fit: Sequence[Standing],
        prompts: Mapping[Naming, Prompt],
        shares: Mapping[str, float],
    ) -> tuple[Replica, RouteReason, Placed | None]:
        least = by_load(fit, service.policy, self._turn, shares).replica
        if service.policy == "PrefixAffinity":
            placed = self.prefixes.place(
                service.key,
                prompts,
                [weighed(each.load, shares.get(each.replica.id, 1.0)) if shares else each.load for each in fit],
                least.id,
                hot_replicas=service.hot_prefix_replicas,
                shares=shares,
            )
            if placed is not None:
                decision = placed.decision
                chosen = next(each.replica for each in fit if each.replica.id == decision.replica)
                return chosen, decision.reason, placed
        return least, "round_robin" if service.policy == "RoundRobin" else "least_load", None

    def _follow_gone(self) -> None:
        """Keep the names of replicas that leave the present routes, and forget those that come back."""
        there = {replica.id: (key, replica) for key in self._routes.services for replica in self._routes.of(key)}
        self._gone = {
            id_: named
            for id_, named in (self._gone | there).items()
            if id_ not in self._known and self._num_own[id_] > 0
        }

    def _follow_prefixes(self) -> None:
        routes = self._routes
        self.prefixes.update(
            {
                replica.id: (key, cache)
                for key, service in routes.services.items()
                if service.policy == "PrefixAffinity"
                for replica in routes.of(key)
                if (cache := self._reports.get(replica.id, NO_REPORT).cache) is not None
            }
        )

    def _with_former_models(self, routes: Routes) -> Routes:
        def former_models(service: Service) -> tuple[str, ...]:
            reports = [
                self._reports.get(replica.id, NO_REPORT)
                for replica in routes.of(service.key)
                if replica.is_ready and not replica.is_terminating
            ]
            return tuple(sorted({report.model for report in reports if is_former(service, report)}))

        services = {key: replace(each, former_models=former_models(each)) for key, each in routes.services.items()}
        return replace(routes, services=services)

    def _standing(self, replica: Replica) -> Standing:
        id_ = replica.id
        return Standing(replica, self._num_own[id_], self._reports.get(id_, NO_REPORT), self._circuit(id_))

    def _circuit(self, replica_id: str) -> Circuit:
        return self._circuits.get(replica_id, _CLOSED)


def _ready(replicas: Sequence[Replica]) -> set[str]:
    return {replica.id for replica in replicas if replica.is_ready and not replica.is_terminating}


def _cordoned(routes: Routes) -> set[str]:
    return {replica.id for replica in routes.all_replicas() if replica.is_cordoned}
