"""The operator's metrics: a registry made of `sapwood_contract.metrics`; what is not in the contract cannot be made."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from sapwood_contract.metrics import BY_NAME, RECONCILED_KINDS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class OperatorMetrics:
    """All series of one operator. Safe to use from several threads."""

    def __init__(self) -> None:
        # Twice the series, for a time that nobody looks at. (The library has no annotations.)
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._seconds = self._histogram("sapwood_operator_reconcile_seconds")
        self._errors = self._counter("sapwood_operator_reconcile_errors_total")
        self._depth = self._gauge("sapwood_operator_queue_depth")
        for kind in RECONCILED_KINDS:
            self._seconds.labels(kind)
            self._errors.labels(kind)
            self._depth.labels(kind)
        self._writes = self._counter("sapwood_operator_api_writes_total")
        self._leader = self._gauge("sapwood_operator_leader")
        values = BY_NAME["sapwood_operator_api_writes_total"].values
        for kind in values["kind"]:
            for verb in values["verb"]:
                self._writes.labels(kind, verb)

    def observe_reconcile(self, kind: str, seconds: float) -> None:
        """Record how long one turn took; ``kind``: one of `RECONCILED_KINDS`."""
        self._seconds.labels(kind).observe(seconds)

    def count_error(self, kind: str) -> None:
        """Count a turn that has to be tried again."""
        self._errors.labels(kind).inc()

    def set_queue_depth(self, kind: str, num_keys: int) -> None:
        """Say how many keys wait."""
        self._depth.labels(kind).set(num_keys)

    def count_write(self, kind: str, verb: str) -> None:
        """Count a write sent to the API server."""
        self._writes.labels(kind, verb).inc()

    def set_leader(self, *, leads: bool) -> None:
        """Say whether this operator leads."""
        self._leader.set(leads)

    def text(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self._registry)

    def _histogram(self, name: str) -> Histogram:
        series = BY_NAME[name]
        return Histogram(name, series.help, series.labels, buckets=series.buckets, registry=self._registry)

    def _counter(self, name: str) -> Counter:
        series = BY_NAME[name]
        return Counter(name.removesuffix("_total"), series.help, series.labels, registry=self._registry)

    def _gauge(self, name: str) -> Gauge:
        series = BY_NAME[name]
        return Gauge(name, series.help, series.labels, registry=self._registry)
