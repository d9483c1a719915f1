"""The gateway's metrics: a registry made of `sapwood_contract.metrics`.

A model's name in a label is one that a service has: what clients make up makes no series.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Literal

from sapwood_contract.metrics import (
    GATEWAY_ATTEMPT_FAILURES,
    GATEWAY_EVENT_GAPS,
    GATEWAY_PREDICTIONS,
    GATEWAY_REJECTIONS,
    GATEWAY_REPLICA_STATES,
    GATEWAY_ROUTES,
    GATEWAY_UNREAD,
    HTTP_CODES,
)
from sapwood_gateway.core.balance import Fitness
from sapwood_gateway.core.fleet import RouteReason
from sapwood_gateway.core.recent_greatest import RecentGreatest
from sapwood_gateway.core.routes import ServiceKey
from sapwood_gateway.shell.kv_events import EventGap
from sapwood_gateway.shell.prompts import Unread
from sapwood_metrics.exposition import Scraped
from sapwood_metrics.registry import Registry

AttemptFailure = Literal["connect", "broken", "timeout", "busy", "unavailable", "cut"]
Rejection = Literal["rate", "quota", "overload", "auth"]
Census = Mapping[Fitness, int]

_AWAITED_CODES = tuple(code for code in HTTP_CODES if code in ("200", "429", "499") or code.startswith("5"))
"""What alerts and panels take rates of; not every code, for each is a series of every model."""

_LAG_SECONDS = 60.0
"""For which the longest lag stands: a scrape a minute misses none."""


class GatewayMetrics:
    """All series of one gateway; its methods may be called from any thread."""

    def __init__(
        self,
        *,
        served: Callable[[], Iterable[tuple[ServiceKey, str]]],
        census: Callable[[], Census],
        num_running: Callable[[], int],
        num_queued: Callable[[], Mapping[str, int]],
        num_blocks: Callable[[], int],
    ) -> None:
        """All asked at each scrape; ``served``: each service with every model that it answers to, ``census``: replicas
        by state, ``num_running``: requests on their way, ``num_queued``: requests that wait, by service,
        ``num_blocks``: blocks that replicas are known to hold.
        """
        self._registry = Registry()
        self._served = served
        self._census = census
        self._num_queued = num_queued
        self._requests = self._registry.counter("sapwood_gateway_requests_total")
        self._routes = self._registry.counter("sapwood_gateway_route_total")
        self._unread = self._registry.counter("sapwood_gateway_unread_prompts_total")
        self._predicted = self._registry.counter("sapwood_gateway_predicted_match_tokens_total")
        self._actual = self._registry.counter("sapwood_gateway_actual_match_tokens_total")
        self._predictions = self._registry.counter("sapwood_gateway_match_predictions_total")
        self._lag = RecentGreatest(_LAG_SECONDS)
        self._registry.gauge("sapwood_gateway_event_lag_seconds").set_function(lambda: self._lag.at(time.monotonic()))
        self._rejected = self._registry.counter("sapwood_gateway_rejected_total")
        self._store_failures = self._registry.counter("sapwood_gateway_quota_store_failures_total")
        self._queued = self._registry.gauge("sapwood_gateway_queued_requests")
        self._queue_time = self._registry.histogram("sapwood_gateway_queue_time_seconds")
        self._gaps = self._registry.counter("sapwood_gateway_event_gaps_total")
        self._registry.gauge("sapwood_gateway_index_blocks").set_function(num_blocks)
        self._failures = self._registry.counter("sapwood_gateway_attempt_failures_total")
        self._discovery_failures = self._registry.counter("sapwood_gateway_discovery_failures_total")
        self._overhead = self._registry.histogram("sapwood_gateway_overhead_seconds")
        self._registry.gauge("sapwood_gateway_requests_running").set_function(num_running)
        self._replicas = self._registry.gauge("sapwood_gateway_replicas")
        self._registry.info("sapwood_gateway_build_info").info({"version": version("sapwood")})
        # A rate is right from the first increment on only where the series began at 0.
        for counter, values in (
            (self._routes, GATEWAY_ROUTES),
            (self._unread, GATEWAY_UNREAD),
            (self._predictions, GATEWAY_PREDICTIONS),
            (self._rejected, GATEWAY_REJECTIONS),
            (self._gaps, GATEWAY_EVENT_GAPS),
            (self._failures, GATEWAY_ATTEMPT_FAILURES),
        ):
            for value in values:
                counter.labels(value)

    def answered(self, service: str, model: str, code: str) -> None:
        """A request has ended with ``code``; ``service`` and ``model`` are empty where it named none that is served."""
        self._requests.labels(service, model, code if code in HTTP_CODES else "other").inc()

    def sent(self, reason: RouteReason, overhead_seconds: float, *, exemplar: Mapping[str, str]) -> None:
        """A request leaves for its first replica, so long after it was read; ``exemplar``: names its trace, if kept."""
        self._routes.labels(reason).inc()
        self._overhead.observe(overhead_seconds, exemplar)

    def not_weighed(self, reason: Unread) -> None:
        """Prefix affinity was to decide, and could not."""
        self._unread.labels(reason).inc()

    def matched(self, model: str, *, expected: int, actual: int, page_tokens: int) -> None:
        """An answer says how many tokens of its prompt were cached, of which ``page_tokens`` make a page."""
        self._predicted.labels(model).inc(expected)
        self._actual.labels(model).inc(actual)
        is_near = abs(actual - expected) <= page_tokens
        self._predictions.labels("within_page" if is_near else "less" if actual < expected else "more").inc()

    def event_lag(self, seconds: float) -> None:
        """Cache events of a replica are known so long after it told of them."""
        self._lag.note(seconds, time.monotonic())

    def event_gap(self, reason: EventGap) -> None:
        """Cache events of a replica were missed, asked for, or cannot be followed."""
        self._gaps.labels(reason).inc()

    def unroutable(self) -> None:
        """A request found no replica that could take it."""
        self._routes.labels("none").inc()

    def rejected(self, reason: Rejection) -> None:
        """The gateway has refused a request itself."""
        self._rejected.labels(reason).inc()

    def quota_store_failed(self) -> None:
        """The store in which quotas are counted did not answer."""
        self._store_failures.inc()

    def waited(self, seconds: float) -> None:
        """A request waits no longer for a replica, whatever became of it."""
        self._queue_time.observe(seconds)

    def attempt_failed(self, reason: AttemptFailure) -> None:
        """A replica did not answer, or not to the end."""
        self._failures.labels(reason).inc()

    def discovery_failed(self) -> None:
        """The cluster's API could not be asked, or a watch broke."""
        self._discovery_failures.inc()

    def render(self, accept: str = "") -> Scraped:
        """Return every series, in the form that an Accept header of ``accept`` asks for; called from one thread."""
        named = ((str(key), model) for key, model in self._served())
        for service, model in (("", ""), *named):
            for code in _AWAITED_CODES:
                self._requests.labels(service, model, code)  # at 0 before its first answer, as above
        for state in GATEWAY_REPLICA_STATES:
            self._replicas.labels(state).set(0)
        for state, num in self._census().items():
            self._replicas.labels(state).set(num)
        self._queued.clear()
        for service, num in self._num_queued().items():
            self._queued.labels(service).set(num)
        return self._registry.render(accept)
