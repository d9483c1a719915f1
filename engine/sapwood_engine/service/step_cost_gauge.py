"""What the parts of a step cost, as gauges: each absent while the worker has not seen enough of it."""

from __future__ import annotations

from collections.abc import Mapping

from sapwood_metrics.registry import Registry

STEP_COST_GAUGE = "sapwood_step_cost_seconds"


class StepCostGauge:
    """The series of one engine."""

    def __init__(self, registry: Registry) -> None:
        self._gauge = registry.gauge(STEP_COST_GAUGE)

    def set(self, costs: Mapping[str, float]) -> None:
        """Publish ``costs``, part -> seconds."""
        for part, seconds in costs.items():
            self._gauge.labels(part).set(seconds)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._gauge.clear()
