"""Decisions about replicas as metrics: what was wanted, why, and from what. What is unknown is absent, and so is a
service for which nobody decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sapwood_metrics.registry import Registry
from sapwood_operator.autoscaling.values import Decision


class ScalingMetrics:
    """The series ``sapwood_autoscaler_*``."""

    def __init__(self, registry: Registry, *, clock: Callable[[], float] = time.time) -> None:
        """``clock``: Unix time."""
        self._clock = clock
        self._desired = registry.gauge("sapwood_autoscaler_desired_replicas")
        self._ready = registry.gauge("sapwood_autoscaler_ready_replicas")
        self._signals = registry.gauge("sapwood_autoscaler_signal")
        self._decisions = registry.counter("sapwood_autoscaler_decisions_total")
        self._last = registry.gauge("sapwood_autoscaler_last_decision_timestamp_seconds")
        self._lost = registry.counter("sapwood_autoscaler_cache_lost_tokens_total")
        self._wanted: dict[tuple[str, str], int] = {}
        """Service -> replicas that its last decision wanted."""

    def observe(self, namespace: str, name: str, decision: Decision, *, num_ready: int) -> None:
        """Record a decision; ``num_ready``: replicas that were ready."""
        service = (namespace, name)
        direction = _direction(self._wanted.get(service, decision.desired), decision.desired)
        self._wanted[service] = decision.desired
        self._desired.labels(*service).set(decision.desired)
        self._ready.labels(*service).set(num_ready)
        self._decisions.labels(*service, direction, decision.reason).inc()
        self._lost.labels(*service)
        self._signals.remove_by_labels({"namespace": namespace, "name": name})
        for signal, value in decision.inputs.items():
            self._signals.labels(*service, signal).set(value)
        if any(verdict.type == "MetricsAvailable" and verdict.status for verdict in decision.verdicts):
            self._last.labels(*service).set(self._clock())

    def lose(self, namespace: str, name: str, num_tokens: float) -> None:
        """Count what left with a replica and is on no other one, of a service for which somebody decides."""
        if (namespace, name) in self._wanted:
            self._lost.labels(namespace, name).inc(num_tokens)

    def forget(self, namespace: str, name: str) -> None:
        """Nobody decides for the service any more."""
        self._wanted.pop((namespace, name), None)
        for series in (self._desired, self._ready, self._signals, self._decisions, self._last, self._lost):
            series.remove_by_labels({"namespace": namespace, "name": name})


def _direction(before: int, after: int) -> str:
    if after == before:
        return "hold"
    return "up" if after > before else "down"
