"""What the leading operator answers people who ask about the scaling of a service: as a turn would see it now."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from sapwood_operator.adapters.scaling_port import Answer, NoAnswer
from sapwood_operator.autoscaling.outlook import Question, outlook, to_json, told
from sapwood_operator.autoscaling.rule import NoRule
from sapwood_operator.autoscaling.signals import ServiceSignals
from sapwood_operator.autoscaling.turn import question_of
from sapwood_operator.autoscaling.what_if import NoPrediction
from sapwood_operator.domain.observed import Observed
from sapwood_operator.domain.spec import FixedReplicas
from sapwood_operator.handlers.store import ServiceKey, Store


class Observer(Protocol):
    """Knows what a turn looks at: `handlers.reconcile.Reconciler`."""

    def observed(self, key: ServiceKey) -> Observed | None:
        """Return one service as it is now; None: it does not exist."""


class Signals(Protocol):
    """Knows what replicas do: `handlers.signals.Signals`."""

    def of(self, key: ServiceKey) -> ServiceSignals:
        """Return what is known of one service now."""


class ServiceOutlooks:
    """Belongs to the event loop's thread."""

    def __init__(self, store: Store, *, observer: Observer, signals: Signals, now: Callable[[], datetime]) -> None:
        """``now`` is in UTC."""
        self._store = store
        self._observer = observer
        self._signals = signals
        self._now = now

    def told(self, namespace: str, name: str) -> Answer:
        """Return what is decided about a service, and from what."""
        question = self._question(ServiceKey(namespace, name))
        return question if isinstance(question, NoAnswer) else to_json(told(question))

    def outlook(self, namespace: str, name: str, *, replicas: int, memory_factor: float) -> Answer:
        """Return what another number of replicas would do."""
        question = self._question(ServiceKey(namespace, name))
        if isinstance(question, NoAnswer):
            return question
        found = outlook(question, replicas=replicas, memory_factor=memory_factor)
        if isinstance(found, NoPrediction):
            return NoAnswer(
                422, "NothingMeasured", f"nothing can be said yet: {found.why}; wait a minute and ask again"
            )
        return to_json(found)

    def _question(self, key: ServiceKey) -> Question | NoAnswer:
        observed = self._observer.observed(key)
        if observed is None:
            there = f"there is no InferenceService {key.name[:253]!r} in namespace {key.namespace[:253]!r}"
            return NoAnswer(404, "NoSuchService", f"{there} that this operator watches")
        found = question_of(
            observed, self._store.policies(key.namespace), self._signals.of(key), self._now().timestamp()
        )
        match found:
            case FixedReplicas(count):
                fix = "give it spec.autoscaling, with mode DryRun to only look"
                return NoAnswer(422, "NotScaled", f"{key} is not scaled by a policy (spec.replicas: {count}): {fix}")
            case NoRule(reason, message):
                return NoAnswer(422, reason, f"{key} is not scaled: {message}")
            case question:
                return question
