"""Autoscaler: how many replicas each service is to have, why, and from what that was decided."""

from __future__ import annotations

from sapwood_dashboards.panels import Dashboard, Limit, Panel, Query, Row

_SERVICE = "{{namespace}}/{{name}}"


def _latest(series: str, *, by: str = "", matchers: str = "") -> str:
    """Return a gauge by service, and by the label ``by``, whichever operator's pod says it."""
    labels = f"namespace, name, {by}" if by else "namespace, name"
    chosen = f"@scaled,{matchers}" if matchers else "@scaled"
    return f"max by ({labels}) (sapwood_autoscaler_{series}{{{chosen}}})"


def _signals(*names: str) -> Query:
    legend = f"{{{{signal}}}} {_SERVICE}" if len(names) > 1 else _SERVICE
    operator = "=~" if len(names) > 1 else "="
    return Query(_latest("signal", by="signal", matchers=f'signal{operator}"{"|".join(names)}"'), legend)


_REPLICAS = Row(
    "Replicas",
    (
        Panel(
            title="Wanted and ready",
            description=(
                "Apart for longer than a start takes: see the service's conditions. In mode DryRun nobody acts on what"
                " is wanted."
            ),
            queries=(
                Query(_latest("desired_replicas"), f"wanted {_SERVICE}"),
                Query(_latest("ready_replicas"), f"ready {_SERVICE}"),
            ),
            width=12,
        ),
        Panel(
            title="Time since the last decision from measurements",
            description="A minute at most, but while the first replica starts. Above 5 minutes it is blind.",
            queries=(Query(f"time() - {_latest('last_decision_timestamp_seconds')}", _SERVICE),),
            unit="s",
            limits=(Limit(value=300.0),),
            runbook="AutoscalerBlind",
            width=12,
        ),
        Panel(
            title="Decisions by reason",
            description="Four a minute and service. What asked for another number of replicas, and what held it.",
            queries=(
                Query(
                    "sum by (reason) (rate(sapwood_autoscaler_decisions_total{@scaled}[$__rate_interval]))",
                    "{{reason}}",
                ),
            ),
            unit="ops",
            kind="stacked",
            width=12,
        ),
        Panel(
            title="Changes of the number wanted, 1 h",
            description="Up and down in turns: raise the policy's windows of stabilization.",
            queries=(
                Query(
                    "sum by (namespace, name, direction)"
                    ' (increase(sapwood_autoscaler_decisions_total{@scaled,direction=~"up|down"}[1h]))',
                    f"{{{{direction}}}} {_SERVICE}",
                ),
            ),
            kind="bars",
            width=12,
        ),
    ),
)

_SIGNALS = Row(
    "What was decided from",
    (
        Panel(
            title="Requests a second",
            description="That came to the replicas. Growing with fewer ready than wanted: they wait.",
            queries=(_signals("arrivals_per_second"),),
            unit="reqps",
        ),
        Panel(
            title="Prompt tokens a second, and those to compute",
            description="What replicas are for. The gap is what caches save; it closes where hits are lost.",
            queries=(_signals("prompt_tokens_per_second", "prefill_tokens_per_second"),),
            unit="ops",
        ),
        Panel(
            title="Prefill that waits",
            description="Tokens, now. For minutes: more replicas come, or ScalingLimited says why not.",
            queries=(_signals("waiting_tokens"),),
            runbook="QueueSaturated",
        ),
        Panel(
            title="Hit ratio, and requests that went where their prefix is",
            description="With a low affinity replicas hold the same prefixes, and more of them win fewer hits.",
            queries=(_signals("hit_ratio", "affinity"),),
            unit="percentunit",
        ),
        Panel(
            title="Time to first token and between tokens, p90",
            description="As the autoscaler sees it, against what the policy promises (slo).",
            queries=(_signals("ttft_p90_seconds", "itl_p90_seconds"),),
            unit="s",
            runbook="TTFTBudgetBurn",
        ),
        Panel(
            title="KV memory that running requests hold",
            description="Above the policy's kvUtilization replicas are added.",
            queries=(_signals("pinned_kv_ratio"),),
            unit="percentunit",
            limits=(Limit(value=0.85, colour="yellow"),),
            runbook="PreemptionStorm",
        ),
        Panel(
            title="Replicas that report",
            description="Share of those that should. Below the policy's floor nothing is decided.",
            queries=(_signals("coverage_ratio"),),
            unit="percentunit",
            runbook="AutoscalerBlind",
        ),
        Panel(
            title="The busiest replica, against the mean",
            description="Far above 1: prefixes draw requests to one; another replica would not take them from it.",
            queries=(_signals("skew_ratio"),),
        ),
        Panel(
            title="Cached tokens lost with replicas, 1 h",
            description=(
                "Tokens of prefill, in five minutes, that prefixes would have saved which left with replicas and were"
                " on no other one. With a hit ratio that falls the alert fires."
            ),
            queries=(
                Query(
                    "sum by (namespace, name) (increase(sapwood_autoscaler_cache_lost_tokens_total{@scaled}[1h]))",
                    _SERVICE,
                ),
            ),
            runbook="ScaleInCacheLoss",
        ),
    ),
)

AUTOSCALER = Dashboard(
    uid="sapwood-autoscaler",
    title="Sapwood / Autoscaler",
    description="How many replicas each service is to have, why, and from what that was decided.",
    subject="sapwood_autoscaler_desired_replicas",
    variables=("namespace", "inference_service"),
    labels={"inference_service": "name"},
    rows=(_REPLICAS, _SIGNALS),
)
