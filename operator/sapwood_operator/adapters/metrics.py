"""The operator's metrics: a registry made of `sapwood_contract.metrics`; what is not in the contract cannot be made."""

from __future__ import annotations

from sapwood_contract.metrics import BY_NAME, RECONCILED_KINDS
from sapwood_metrics.exposition import Scraped
from sapwood_metrics.registry import Registry
from sapwood_operator.adapters.scaling_metrics import ScalingMetrics
from sapwood_operator.autoscaling.values import Decision


class OperatorMetrics:
    """All series of one operator. Safe to use from several threads."""

    def __init__(self) -> None:
        self._registry = Registry()
        self._seconds = self._registry.histogram("sapwood_operator_reconcile_seconds")
        self._errors = self._registry.counter("sapwood_operator_reconcile_errors_total")
        self._depth = self._registry.gauge("sapwood_operator_queue_depth")
        for kind in RECONCILED_KINDS:
            self._seconds.labels(kind)
            self._errors.labels(kind)
            self._depth.labels(kind)
        self._writes = self._registry.counter("sapwood_operator_api_writes_total")
        self._leader = self._registry.gauge("sapwood_operator_leader")
        values = BY_NAME["sapwood_operator_api_writes_total"].values
        for kind in values["kind"]:
            for verb in values["verb"]:
                self._writes.labels(kind, verb)
        self._scaling = ScalingMetrics(self._registry)

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

    def observe_decision(self, namespace: str, name: str, decision: Decision, *, num_ready: int) -> None:
        """Record a decision about a service's replicas, of which ``num_ready`` were ready."""
        self._scaling.observe(namespace, name, decision, num_ready=num_ready)

    def lose(self, namespace: str, name: str, num_tokens: float) -> None:
        """Count cached tokens of worth that left with a replica and are on no other one."""
        self._scaling.lose(namespace, name, num_tokens)

    def forget_decisions(self, namespace: str, name: str) -> None:
        """Nobody decides for the service any more."""
        self._scaling.forget(namespace, name)

    def set_leader(self, *, leads: bool) -> None:
        """Say whether this operator leads."""
        self._leader.set(leads)

    def render(self, accept: str = "") -> Scraped:
        """Return every series, in the form that an Accept header of ``accept`` asks for; called from one thread."""
        return self._registry.render(accept)
