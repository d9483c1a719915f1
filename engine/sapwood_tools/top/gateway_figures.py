"""What ``/metrics`` says of a gateway. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from sapwood_tools.top.fields import number, word

_RUNNING = "sapwood_gateway_requests_running"
_QUEUED = "sapwood_gateway_queued_requests"
_REPLICAS = "sapwood_gateway_replicas"
_ROUTED = "sapwood_gateway_route_total"


@dataclass(frozen=True, slots=True)
class GatewayFigures:
    """One scrape."""

    running: int
    queued: int
    replicas: tuple[tuple[str, int], ...]
    """``(state, number)``."""
    routed: tuple[tuple[str, float], ...]
    """``(what a replica was chosen for, requests)`` since the gateway was started."""


def read_gateway_figures(text: str) -> GatewayFigures | None:
    """Read a gateway's ``/metrics``; None where it does not say what a gateway says."""
    totals = {_QUEUED: 0.0}
    replicas: list[tuple[str, int]] = []
    routed: list[tuple[str, float]] = []
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in (_RUNNING, _QUEUED):
                    totals[sample.name] = totals.get(sample.name, 0.0) + number(sample.value)
                elif sample.name == _REPLICAS:
                    replicas.append((word(sample.labels["state"]), int(number(sample.value))))
                elif sample.name == _ROUTED:
                    routed.append((word(sample.labels["result"]), number(sample.value)))
        return GatewayFigures(int(totals[_RUNNING]), int(totals[_QUEUED]), tuple(replicas), tuple(routed))
    except (ValueError, KeyError, ArithmeticError):
        return None
