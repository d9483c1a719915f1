"""The gateway's metrics: a registry made of `sapwood_contract.metrics`.

A model's name in a label is one that a service has: what clients make up makes no series.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)

from sapwood_contract.metrics import (
    BY_NAME,
    GATEWAY_ATTEMPT_FAILURES,
    GATEWAY_CODES,
    GATEWAY_REPLICA_STATES,
)
from sapwood_contract.routing import RoutingPolicy
from sapwood_gateway.core.balance import Fitness

AttemptFailure = Literal["connect", "broken", "timeout", "busy", "unavailable", "cut"]
Census = Mapping[Fitness, int]

_ROUTE_OF: Mapping[RoutingPolicy, str] = {"LeastLoad": "least_load", "RoundRobin": "round_robin"}
_REACHED_ROUTES = ("least_load", "round_robin", "none")
"""Of the contract's values those that there is a policy for."""


class GatewayMetrics:
    """All series of one gateway; its methods may be called from any thread."""

    def __init__(self, *, census: Callable[[], Census], num_running: Callable[[], int]) -> None:
        """``census``: replicas by state, ``num_running``: requests on their way; both asked at each scrape."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no annotations
        self._registry = CollectorRegistry()
        self._census = census
        self._requests = self._counter("sapwood_gateway_requests_total")
        self._routes = self._counter("sapwood_gateway_route_total")
        self._failures = self._counter("sapwood_gateway_attempt_failures_total")
        self._discovery_failures = self._counter("sapwood_gateway_discovery_failures_total")
        overhead = BY_NAME["sapwood_gateway_overhead_seconds"]
        self._overhead = Histogram(overhead.name, overhead.help, buckets=overhead.buckets, registry=self._registry)
        self._running = self._gauge("sapwood_gateway_requests_running")
        self._running.set_function(num_running)
        self._replicas = self._gauge("sapwood_gateway_replicas")
        info = BY_NAME["sapwood_gateway_build_info"]
        Info(info.name.removesuffix("_info"), info.help, registry=self._registry).info({"version": version("sapwood")})
        # A rate is right from the first increment on only where the series began at 0.
        for route in _REACHED_ROUTES:
            self._routes.labels(route)
        for reason in GATEWAY_ATTEMPT_FAILURES:
            self._failures.labels(reason)

    def answered(self, model: str, code: str) -> None:
        """A request has ended with ``code``; ``model`` is empty where it named none that is served."""
        self._requests.labels(model, code if code in GATEWAY_CODES else "other").inc()

    def sent(self, policy: RoutingPolicy, overhead_seconds: float) -> None:
        """A request leaves for its first replica, so long after it was read."""
        self._routes.labels(_ROUTE_OF[policy]).inc()
        self._overhead.observe(overhead_seconds)

    def unroutable(self) -> None:
        """A request found no replica that could take it."""
        self._routes.labels("none").inc()

    def attempt_failed(self, reason: AttemptFailure) -> None:
        """A replica did not answer, or not to the end."""
        self._failures.labels(reason).inc()

    def discovery_failed(self) -> None:
        """The cluster's API could not be asked, or a watch broke."""
        self._discovery_failures.inc()

    def render(self) -> bytes:
        """Return every series in Prometheus' text format."""
        for state in GATEWAY_REPLICA_STATES:
            self._replicas.labels(state).set(0)
        for state, num in self._census().items():
            self._replicas.labels(state).set(num)
        return generate_latest(self._registry)

    def _counter(self, name: str) -> Counter:
        series = BY_NAME[name]
        return Counter(series.name, series.help, series.labels, registry=self._registry)

    def _gauge(self, name: str) -> Gauge:
        series = BY_NAME[name]
        return Gauge(series.name, series.help, series.labels, registry=self._registry)
