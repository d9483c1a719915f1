"""The shell around `autoscaling.turn`: what a turn of a service needs for scaling, and what becomes of it.

Nothing that decides is remembered here: what engines said is with `Engines`, what was decided stands in the status.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from sapwood_operator.autoscaling.engines import EngineCall, EngineSeen
from sapwood_operator.autoscaling.movement import Lost
from sapwood_operator.autoscaling.signals import ServiceSignals
from sapwood_operator.autoscaling.turn import Scaling, Undecided, scaling_turn
from sapwood_operator.autoscaling.values import Decision
from sapwood_operator.domain.observed import Observed
from sapwood_operator.handlers.store import ServiceKey, Store

_log = logging.getLogger(__name__)


class Signals(Protocol):
    """Knows what replicas do: `handlers.signals.Signals`."""

    def of(self, key: ServiceKey) -> ServiceSignals:
        """Return what is known of one service now."""


class Engines(Protocol):
    """Asks engines beside the turns: `handlers.engine_calls.Engines`."""

    def known(self, key: ServiceKey) -> Mapping[str, EngineSeen]:
        """Return what is known of a service's engines, by the uids of their pods."""

    def carry_out(
        self,
        key: ServiceKey,
        service: Mapping[str, Any],
        pods: Sequence[Mapping[str, Any]],
        calls: Sequence[EngineCall],
        lost: Sequence[Lost],
    ) -> None:
        """Begin ``calls`` and count ``lost``."""

    def forget(self, key: ServiceKey) -> None:
        """The service is gone."""


class Decisions(Protocol):
    """Shows decisions as metrics: `adapters.metrics.OperatorMetrics`."""

    def observe_decision(self, namespace: str, name: str, decision: Decision, *, num_ready: int) -> None:
        """Record a decision."""

    def forget_decisions(self, namespace: str, name: str) -> None:
        """Nobody decides for the service any more."""


class Scaler:
    """Belongs to the event loop's thread."""

    def __init__(self, store: Store, *, signals: Signals, engines: Engines, metrics: Decisions) -> None:
        self._store = store
        self._signals = signals
        self._engines = engines
        self._metrics = metrics
        self._decided: set[ServiceKey] = set()
        """Services that metrics are shown of."""

    def decide(self, key: ServiceKey, observed: Observed, now: datetime) -> Scaling:
        """Return what scaling wants of a service."""
        policies = self._store.policies(key.namespace)
        signals, engines = self._signals.of(key), self._engines.known(key)
        scaling = scaling_turn(observed, policies, signals, engines, now.timestamp())
        match scaling.decision:
            case Undecided(problem=problem):
                self._forget_decisions(key)
                if problem:
                    _log.error("deciding failed", extra={"service": str(key), "detail": problem})
            case decision:
                self._decided.add(key)
                self._metrics.observe_decision(key.namespace, key.name, decision, num_ready=scaling.num_ready)
        return scaling

    def carry_out(self, key: ServiceKey, scaling: Scaling, service: Mapping[str, Any], *, lost: Sequence[Lost]) -> None:
        """Ask engines what ``scaling`` wants; ``lost``: what went with the replicas that this turn let go."""
        self._engines.carry_out(key, service, self._store.pods(key), scaling.calls, lost)

    def forget(self, key: ServiceKey) -> None:
        """The service is gone."""
        self._engines.forget(key)
        self._forget_decisions(key)

    def _forget_decisions(self, key: ServiceKey) -> None:
        if key in self._decided:
            self._decided.remove(key)
            self._metrics.forget_decisions(key.namespace, key.name)
