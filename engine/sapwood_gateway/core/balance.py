"""Which replica takes a request: first which ones can, then the policy's pick among those."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from sapwood_contract.http import EngineState
from sapwood_contract.routing import RoutingPolicy
from sapwood_gateway.core.block_names import CacheFacts
from sapwood_gateway.core.circuit import Circuit, lets_through
from sapwood_gateway.core.routes import Replica, Service

Fitness = Literal["fit", "terminating", "not_ready", "draining", "resting", "tried", "of_another_model"]
"""Whether a replica can take a request, or the first reason why not."""


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


NO_REPORT = Report(state="ready", num_requests=0, num_waiting_tokens=0, num_own=0)
"""Stands for a replica that has said nothing yet: it is taken for idle."""


@dataclass(frozen=True, slots=True)
class Standing:
    """All that a decision may weigh about one replica."""

    replica: Replica
    num_own: int
    """This gateway's requests on it now."""
    report: Report
    circuit: Circuit

    @property
    def num_requests(self) -> int:
        """What it has to do, by the latest knowledge: our own requests now, and what others had at its report.

        A report is never simply the load: it is up to a poll old, and a burst of our own since then counts.
        """
        return self.num_own + max(0, self.report.num_requests - self.report.num_own)


@dataclass(frozen=True, slots=True)
class NoReplica:
    """None can take the request; ``reasons`` has one for each replica that there is."""

    reasons: tuple[Fitness, ...]


def fitness(standing: Standing, *, tried: Collection[str], now: float) -> Fitness:
    """Tell whether a replica can take a request at ``now``; ``tried``: ids that this request has been to."""
    replica = standing.replica
    if replica.is_terminating:
        return "terminating"
    if not replica.is_ready:
        return "not_ready"
    if standing.report.state == "draining":
        return "draining"
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

    A replica answers to all of the service's names, one of a former revision to its own alone.
    """

    def fate_of(standing: Standing) -> Fitness:
        names = (standing.report.model,) if is_former(service, standing.report) else service.models
        return fitness(standing, tried=tried, now=now) if model in names else "of_another_model"

    fates = [fate_of(standing) for standing in standings]
    fit = [standing for standing, fate in zip(standings, fates, strict=True) if fate == "fit"]
    return fit or NoReplica(tuple(fates))


def by_load(fit: Sequence[Standing], policy: RoutingPolicy, turn: int) -> Standing:
    """Return the one that takes a request by ``policy`` without a look at prompts: least load for `PrefixAffinity`.

    ``turn`` rises with every request and settles ties.
    """
    return _round_robin(fit, turn) if policy == "RoundRobin" else _least_load(fit, turn)


def pick(
    standings: Sequence[Standing], service: Service, model: str, *, tried: Collection[str], now: float, turn: int
) -> Replica | NoReplica:
    """Return the replica that takes a request for ``model`` by `able` and `by_load`."""
    fit = able(standings, service, model, tried=tried, now=now)
    return fit if isinstance(fit, NoReplica) else by_load(fit, service.policy, turn).replica


def _least_load(fit: Sequence[Standing], turn: int) -> Standing:
    """The fewest requests, then the fewest tokens that wait to be computed, then by turns."""
    loads = [(standing.num_requests, standing.report.num_waiting_tokens) for standing in fit]
    least = min(loads)
    return _round_robin([standing for standing, load in zip(fit, loads, strict=True) if load == least], turn)


def _round_robin(fit: Sequence[Standing], turn: int) -> Standing:
    return fit[turn % len(fit)]
