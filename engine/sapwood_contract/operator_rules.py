"""Alerts on the operator's autoscaler as data. Its series have ``namespace`` and ``name`` of the service, not of the
operator's pod.
"""

from __future__ import annotations

from sapwood_contract.alert_rules import Alert

_BY_NAME = "namespace, name"
_NAMED = "{{ $labels.namespace }}/{{ $labels.name }}"


def _latest(series: str) -> str:
    """Return a series by service: for some minutes Prometheus shows those of a former operator's pod too."""
    return f"max by ({_BY_NAME}) (sapwood_autoscaler_{series})"


_LAST, _DESIRED, _READY = (
    _latest(series) for series in ("last_decision_timestamp_seconds", "desired_replicas", "ready_replicas")
)
_DECIDED_FOR = f"max by ({_BY_NAME}) (max_over_time(sapwood_autoscaler_desired_replicas[1h]))"
"""Services that were decided for within the hour: without an operator that leads they have no series any more."""

_PROMPTS = (
    f"sum by ({_BY_NAME}) (label_replace("
    'sum by (namespace, inference_service) (increase(sapwood_prompt_tokens_total{source!="recompute"}[5m])),'
    ' "name", "$1", "inference_service", "(.*)"))'
)
"""Prompt tokens of five minutes, by the names that the operator gives: the time that worth is told for."""
_HITS = 'label_replace(inference_service:sapwood_cache_hit:ratio_rate%s, "name", "$1", "inference_service", "(.*)")'

OPERATOR_ALERTS = (
    Alert(
        name="AutoscalerBlind",
        # While no replica is ready none can report: ReplicaStuckLoading tells of that.
        expr=(
            f"(time() - {_LAST} > 300 or {_DESIRED} unless {_LAST}) and ({_READY} > 0 or {_DESIRED} == 0)"
            f" or {_DECIDED_FOR} unless on () (sapwood_operator_leader == 1)"
        ),
        severity="warning",
        pending="10m",
        summary=f"The autoscaler does not see what a service does: {_NAMED}",
        description=(
            "For more than 10m nothing was decided from measurements: the number of replicas does not follow the load."
        ),
    ),
    Alert(
        name="ScaleInCacheLoss",
        expr=(
            f"sum by ({_BY_NAME}) (increase(sapwood_autoscaler_cache_lost_tokens_total[30m])) > 0.05 * {_PROMPTS}"
            f" and on ({_BY_NAME}) ({_HITS % '5m'} < on ({_BY_NAME}) {_HITS % '1h offset 30m'} - 0.05)"
        ),
        severity="warning",
        pending="5m",
        summary=f"A service hits its caches less since replicas were taken away: {_NAMED}",
        description=(
            "In the last 30m cached tokens left with replicas that were worth {{ $value | humanize }} tokens of prefill"
            " in five minutes, and the hit ratio is more than 0.05 below what it was."
        ),
    ),
)
