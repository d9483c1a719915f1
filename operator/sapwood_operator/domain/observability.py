"""What is put beside a service for those who watch over it: scrapes, alerts, traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from sapwood_contract.alerting import TTFT_BORDERS, ServiceObjectives
from sapwood_operator.domain.fields import Fields
from sapwood_operator.errors import InvalidSpec

WhenMade = Literal["Auto", "Enabled", "Disabled"]
"""Of an object whose API a cluster may lack: where it has it, in any case, or not at all."""
DEFAULT_SAMPLING_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class NoTracing:
    """The engines keep no traces."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """Where the engines' traces go."""

    endpoint: str
    """URL of an OTLP receiver over HTTP."""
    sampling_ratio: float
    """Share of the requests without a trace of their own that are traced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observability:
    """``spec.observability``."""

    pod_monitor: WhenMade
    alerts: WhenMade
    objectives: ServiceObjectives
    """What alerts hold the service to, unless a policy that it names promises something (`Intent.promised_seconds`)."""
    tracing: Tracing | NoTracing


def read_observability(observability: Fields, slo: Fields) -> Observability:
    """Read ``spec.observability``, and of ``spec.autoscaling.slo`` what alerts are made of; raises `InvalidSpec`."""
    return Observability(
        pod_monitor=cast(WhenMade, observability.choice("podMonitor", "Auto", get_args(WhenMade))),
        alerts=_read_alerts(observability),
        objectives=_read_objectives(slo),
        tracing=_read_tracing(observability),
    )


def _read_alerts(observability: Fields) -> WhenMade:
    """Whoever says nothing gets alerts where they can be had; who says true is told where they cannot."""
    if not observability.has("alerts"):
        return "Auto"
    return "Enabled" if observability.switch("alerts", True) else "Disabled"


def objectives_for(promised: float) -> ServiceObjectives:
    """Return what alerts hold a service to whose first tokens are promised within so many seconds, nine of ten times.

    It is the next time that the histogram counts up to: of what lies between two of them nothing is known.
    """
    counted = next((border for border in TTFT_BORDERS if border >= promised), TTFT_BORDERS[-1])
    return ServiceObjectives(ttft_seconds=counted, ttft_ratio=0.9)


def _read_objectives(slo: Fields) -> ServiceObjectives:
    if not slo.has("ttftP90"):
        return ServiceObjectives()
    promised = slo.seconds("ttftP90", 0.0)
    if promised <= 0:
        raise InvalidSpec(slo.where("ttftP90"), slo.values["ttftP90"], "give a time above zero, or leave it out")
    return objectives_for(promised)


def _read_tracing(observability: Fields) -> Tracing | NoTracing:
    if not observability.has("tracing"):
        return NoTracing()
    tracing = observability.inner("tracing")
    return Tracing(tracing.text("endpoint"), tracing.ratio("samplingRatio", DEFAULT_SAMPLING_RATIO))
