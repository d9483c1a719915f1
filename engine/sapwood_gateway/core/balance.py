"""Which replica takes a request: first which ones can, then the policy's pick among those."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sapwood_contract.http import EngineState
from sapwood_contract.routing import RoutingPolicy
from sapwood_gateway.core.affinity import NO_SHARES
from sapwood_gateway.core.block_names import CacheFacts
from sapwood_gateway.core.circuit import Circuit, Closed, lets_through
from sapwood_gateway.core.prefix_affinity import Load
from sapwood_gateway.core.routes import Replica, Service
from sapwood_gateway.core.slow_start import whose_turn

Fitness = Literal[
    "fit",
    "terminating",
    "not_ready",
    "draining",
    "cordoned",
    "resting",
    "tried",
    "of_another_model",
    "not_heard_from",
    "knows_no_gateway",
    "full",
]
"""Whether a replica can take a request, or the first reason why not; ``full`` counts where requests can wait,
``not_heard_from`` and ``knows_no_gateway`` where tenants must be kept apart."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica last said of itself."""

    state: EngineState
    num_requests: int
    """Running and waiting, whoever sent them."""
    num_waiting_tokens: int
    num_own: int
    """Of this gateway's requests, those that were on their way to the replica when it said so."""
    model: str = ""
    """The base model that it serves; empty where it has not said so."""
    cache: CacheFacts | None = None
    """Its prefix cache; None where it has not said enough."""
    max_running: int = 0
    """Requests that it computes at once; 0: it has not said."""
    knows_gateway: bool = False
    """Whether it keeps apart the tenants that the gateway names; one that has not said so is not taken to."""


_LEAST_WAITING = 2
_RUNNING_PER_WAITING = 8
"""A full engine has so many requests that wait for a place, an eighth of its places or two: between the end of one
request and the next that the gateway sends there are some milliseconds, in which a place would stay empty."""
NO_REPORT = Report(state="ready", num_requests=0, num_waiting_tokens=0, num_own=0)
"""Stands for a replica that has said nothing yet: it is taken for idle, and not to keep tenants apart."""


@dataclass(frozen=True, slots=True)
class Standing:
    """All that a decision may weigh about one replica, and what follows from it: it is looked at much more often than
    it changes.
    """

    replica: Replica
    num_own: int
    """This gateway's requests on it now."""
    report: Report
    circuit: Circuit
    load: Load = field(init=False)
    """What it has to do, by the latest knowledge: our own requests now, and what others had at its report.

    A report is never simply the load: it is up to a poll old, and a burst of our own since then counts.
    """
    is_well: bool = field(init=False)
    """Whether it is fit at any time, for whoever has not tried it."""

    def __post_init__(self) -> None:
        replica, report = self.replica, self.report
        num_requests = self.num_own + max(0, report.num_requests - report.num_own)
        object.__setattr__(self, "load", Load(replica.id, num_requests, report.num_waiting_tokens))
        is_leaving = replica.is_terminating or replica.is_cordoned or report.state == "draining"
        object.__setattr__(self, "is_well", replica.is_ready and not is_leaving and isinstance(self.circuit, Closed))

    @property
    def num_requests(self) -> int:
        """Of `load`."""
        return self.load.num_requests

    @property
    def is_full(self) -> bool:
        """Whether one more request would only wait there: it has all that it can run, and some to go on with."""
        max_running = self.report.max_running
        return 0 < max_running <= self.num_requests - max(_LEAST_WAITING, max_running // _RUNNING_PER_WAITING)


@dataclass(frozen=True, slots=True)
class NoReplica:
    """None can take the request; ``reasons`` has one for each replica that there is."""

    reasons: tuple[Fitness, ...]

    @property
    def until_another_comes(self) -> bool:
        """Whether all that there are leave, or are not ready yet: so it is where a service goes to zero, or wakes."""
        return all(reason in ("terminating", "not_ready", "draining", "cordoned") for reason in self.reasons)


def fitness(standing: Standing, *, tried: Collection[str], now: float) -> Fitness:
    """Tell whether a replica can take a request at ``now``; ``tried``: ids that this request has been to."""
    replica = standing.replica
    if replica.is_terminating:
        return "terminating"
    if not replica.is_ready:
        return "not_ready"
    if standing.report.state == "draining":
        return "draining"
    if replica.is_cordoned:
        return "cordoned"
    if replica.id in tried:
        return "tried"
    return "fit" if lets_through(standing.circuit, now) else "resting"


def is_former(service: Service, report: Report) -> bool:
    """Whether a replica was started before the service got its present models; one that said nothing yet was not."""
    return report.model not in ("", *service.models)


def able(
    standings: Sequence[Standing], service: Service, model: str, *, tried: Collection[str], now: float
) -> list[Standing] | NoReplica:
    """Return those that can take a request for ``model``, one at least.

    A replica answers to all of the service's names, one of a former revision to its own alone. One that knows no
    gateway has one cache for all tenants, so it takes nothing for a service with keys, and as long as a replica has
    not said that it does know it, it may not. Where none is fit, those that are only cordoned are better than an error.
    """
    is_present, present = model in service.models, ("", *service.models)
    fates: list[Fitness] = [
        ("fit" if standing.is_well and not tried else fitness(standing, tried=tried, now=now))
        if (is_present if standing.report.model in present else standing.report.model == model)
        else "of_another_model"
        for standing in standings
    ]
    if service.authentication == "ApiKey":
        fates = [
            fate if fate not in ("fit", "cordoned") or standing.report.knows_gateway else _unknowing(standing.report)
            for standing, fate in zip(standings, fates, strict=True)
        ]
    fit = [standing for standing, fate in zip(standings, fates, strict=True) if fate == "fit"]
    return fit or _last_resort(standings, fates, tried, now) or NoReplica(tuple(fates))


def _last_resort(
    standings: Sequence[Standing], fates: Sequence[Fitness], tried: Collection[str], now: float
) -> list[Standing]:
    """Return those that could take the request, were they not cordoned."""
    return [
        standing
        for standing, fate in zip(standings, fates, strict=True)
        if fate == "cordoned" and standing.replica.id not in tried and lets_through(standing.circuit, now)
    ]


def _unknowing(report: Report) -> Fitness:
    return "not_heard_from" if report is NO_REPORT else "knows_no_gateway"


def with_room(fit: list[Standing]) -> list[Standing] | NoReplica:
    """Return those of ``fit`` that are not full, one at least."""
    return [standing for standing in fit if not standing.is_full] or NoReplica(tuple("full" for _ in fit))


def by_load(
    fit: Sequence[Standing], policy: RoutingPolicy, turn: int, shares: Mapping[str, float] = NO_SHARES
) -> Standing:
    """Return the one that takes a request by ``policy`` without a look at prompts: least load for `PrefixAffinity`.

    ``turn`` rises with every request and settles ties. ``shares``: of newcomers (`core.slow_start`), which beside
    others take no more than their turns, and those only with no more to do than the least loaded of the others.
    """
    new = [standing for standing in fit if standing.replica.id in shares] if shares else ()
    if not 0 < len(new) < len(fit):
        return _among(fit, policy, turn)
    others = [standing for standing in fit if standing.replica.id not in shares]
    usual = _among(others, policy, turn)
    at = whose_turn([shares[standing.replica.id] for standing in new], len(others), turn)
    if at < len(new) and (policy == "RoundRobin" or new[at].load[1:] <= usual.load[1:]):
        return new[at]
    return usual


def pick(
    standings: Sequence[Standing], service: Service, model: str, *, tried: Collection[str], now: float, turn: int
) -> Replica | NoReplica:
    """Return the replica that takes a request for ``model`` by `able` and `by_load`."""
    fit = able(standings, service, model, tried=tried, now=now)
    return fit if isinstance(fit, NoReplica) else by_load(fit, service.policy, turn).replica


def _among(fit: Sequence[Standing], policy: RoutingPolicy, turn: int) -> Standing:
    return _round_robin(fit, turn) if policy == "RoundRobin" else _least_load(fit, turn)


def _least_load(fit: Sequence[Standing], turn: int) -> Standing:
    """The fewest requests, then the fewest tokens that wait to be computed, then by turns."""
    loads = [standing.load[1:] for standing in fit]
    least = min(loads)
    if loads.count(least) == 1:
        return fit[loads.index(least)]
    return _round_robin([standing for standing, load in zip(fit, loads, strict=True) if load == least], turn)


def _round_robin(fit: Sequence[Standing], turn: int) -> Standing:
    return fit[turn % len(fit)]
