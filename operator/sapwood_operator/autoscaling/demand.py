"""What all gateways together have to do for one service, from what each of them says. Pure.

A gateway that does not answer may hold any number of requests. What the others say is then the least that there is, and
the service is not idle: so it goes up for them, and never down for want of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood_contract.http import GatewayDemand, ServiceDemand
from sapwood_operator.autoscaling.values import Demand, NoDemand

ROUTED_SECONDS = 90.0
"""What gateways routed is looked at over so long."""
LEAST_ROUTED = 20
"""Of fewer requests within that time the share that went by prefix is chance."""


@dataclass(frozen=True, slots=True, order=True)
class Gateway:
    """One gateway's pod."""

    name: str
    url: str
    """Of its admin port."""


@dataclass(frozen=True, slots=True)
class NoGateways:
    """Which gateways there are is not known; ``why`` is for people."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaysHeard:
    """What the gateways answered to one question."""

    at: float
    """Unix time at which they were asked."""
    answers: Mapping[str, GatewayDemand] = field(default_factory=dict)
    """Gateway's name -> its answer."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Gateway's name -> why it has none, in a line that begins with a verb."""
    nobody_asked: str = ""
    """Why it is not known which gateways there are; empty: it is."""


def gateways_in(slices: Iterable[Mapping[str, Any]], *, admin_port: int) -> tuple[Gateway, ...]:
    """Return the gateways in EndpointSlices of their Service, by name, ready or not: one that drains has requests too.

    A pod with addresses of both families is in two slices, and is asked at one of them.
    """
    found: dict[str, Gateway] = {}
    for each in sorted(slices, key=lambda one: str(one.get("addressType"))):
        for endpoint in each.get("endpoints") or ():
            address = next(iter(endpoint.get("addresses") or ()), None)
            if address is None:
                continue
            host = f"[{address}]" if ":" in address else address
            name = (endpoint.get("targetRef") or {}).get("name") or address
            found.setdefault(name, Gateway(name, f"http://{host}:{admin_port}"))
    return tuple(sorted(found.values()))


def is_sane(answer: GatewayDemand) -> bool:
    """Whether what a gateway says can be true."""
    return all(
        min(each.num_waiting, each.num_running, *each.replicas.values()) >= 0
        and 0 <= each.idle_seconds < math.inf
        and 0 <= each.num_routed_by_prefix <= each.num_routed
        for each in answer.services
    )


def demand_of(
    heard: GatewaysHeard, namespace: str, service: str, *, former: Sequence[GatewaysHeard] = ()
) -> Demand | NoDemand:
    """Return what there is to do for one service. A gateway that does not know it yet has not answered for it.

    ``former``: earlier answers, the oldest first, that tell what was routed since.
    """
    found = [
        each
        for answer in heard.answers.values()
        for each in answer.services
        if (each.namespace, each.service) == (namespace, service)
    ]
    if not found:
        return NoDemand(_why(heard))
    is_whole = len(found) == len(heard.answers) + len(heard.problems)
    running: dict[str, int] = {}
    for each in found:
        for replica, num_requests in each.replicas.items():
            running[replica] = running.get(replica, 0) + num_requests
    return Demand(
        num_waiting=sum(each.num_waiting for each in found),
        num_running=sum(each.num_running for each in found),
        idle_seconds=min(each.idle_seconds for each in found) if is_whole else 0.0,
        routed_by_prefix=_routed_by_prefix(heard, namespace, service, former),
        running=running,
        is_whole=is_whole,
    )


def _routed_by_prefix(
    heard: GatewaysHeard, namespace: str, service: str, former: Sequence[GatewaysHeard]
) -> float | None:
    """Return the share of the requests that gateways sent by prefix since the oldest answer that is young enough.

    Of a gateway that has begun anew since then, or was not heard then, nothing counts.
    """
    young = [each for each in former if heard.at - ROUTED_SECONDS <= each.at < heard.at]
    if not young:
        return None
    before, after = (_counted(each, namespace, service) for each in (young[0], heard))
    grown = [
        (now.num_routed - then.num_routed, now.num_routed_by_prefix - then.num_routed_by_prefix)
        for gateway, now in after.items()
        if (then := before.get(gateway)) is not None
    ]
    sound = [(routed, by_prefix) for routed, by_prefix in grown if 0 <= by_prefix <= routed]
    num_routed = sum(routed for routed, _ in sound)
    return sum(by_prefix for _, by_prefix in sound) / num_routed if num_routed >= LEAST_ROUTED else None


def _counted(heard: GatewaysHeard, namespace: str, service: str) -> dict[tuple[str, str], ServiceDemand]:
    """Return by gateway, and by its epoch, what it says of one service."""
    return {
        (name, answer.epoch): each
        for name, answer in heard.answers.items()
        for each in answer.services
        if (each.namespace, each.service) == (namespace, service)
    }


def _why(heard: GatewaysHeard) -> str:
    if heard.nobody_asked:
        return heard.nobody_asked
    if heard.problems:
        name, *others = sorted(heard.problems)
        return f"gateway {name} {heard.problems[name]}" + (
            f"; {len(others)} others do not say it either" if others else ""
        )
    return "no gateway knows the service yet" if heard.answers else "there is no gateway"
