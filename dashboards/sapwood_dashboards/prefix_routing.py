"""Prefix routing: whether requests go where their beginnings are, and how well the gateway knows that."""

from __future__ import annotations

from sapwood_dashboards.panels import Dashboard, Limit, Panel, Query, Row, rate

_CHOICES = Row(
    "Choices",
    (
        Panel(
            title="What replicas were chosen for",
            description="prefix: who has computed the beginning. spill: it had, and too much to do. none: none could.",
            queries=(rate("sapwood_gateway_route_total", matchers="@program", by="result"),),
            unit="reqps",
            kind="stacked",
        ),
        Panel(
            title="Prompts that could not be weighed",
            description=(
                "Routed by load instead. late: the gateway lacks processor, see --prompt-patience-seconds. unnamed: the"
                " replica does not say how it names blocks. unreadable: no tokenizer."
            ),
            queries=(rate("sapwood_gateway_unread_prompts_total", matchers="@program", by="reason"),),
            unit="reqps",
            kind="stacked",
        ),
        Panel(
            title="Hit ratio of the services",
            description="What it is all for. Falling while predictions stay right: prompts share less.",
            queries=(Query("inference_service:sapwood_cache_hit:ratio_rate5m", "{{namespace}}/{{inference_service}}"),),
            unit="percentunit",
            runbook="CacheThrashing",
        ),
    ),
)

_KNOWLEDGE = Row(
    "What the gateway knows",
    (
        Panel(
            title="Cached tokens, expected and found",
            description="On top of each other: the gateway knows what engines hold. More expected: it lags behind.",
            queries=(
                rate("sapwood_gateway_predicted_match_tokens_total", matchers="@program", legend="expected"),
                rate("sapwood_gateway_actual_match_tokens_total", matchers="@program", legend="found"),
            ),
            unit="ops",
            runbook="EventGaps",
        ),
        Panel(
            title="Right predictions",
            description="Share within a page. Below nine tenths: look for gaps and lag beside this.",
            queries=(
                Query(
                    "sum(rate(sapwood_gateway_match_predictions_total"
                    '{@program,result="within_page"}[$__rate_interval]))'
                    " / (sum(rate(sapwood_gateway_match_predictions_total{@program}[$__rate_interval])) > 0)",
                    "within a page",
                ),
            ),
            unit="percentunit",
            limits=(Limit(value=0.9, colour="green"),),
            below="red",
            runbook="EventGaps",
        ),
        Panel(
            title="Predictions",
            description="within_page: right. less: evicted since. more: computed since, and not told yet.",
            queries=(rate("sapwood_gateway_match_predictions_total", matchers="@program", by="result"),),
            unit="ops",
            kind="stacked",
        ),
        Panel(
            title="Blocks known",
            description="Falling to 0 and back: an engine was started anew, or could not be followed.",
            queries=(Query("sum by (pod) (sapwood_gateway_index_blocks{@program})", "{{pod}}"),),
            runbook="EventGaps",
        ),
        Panel(
            title="Lag of events",
            description="The longest of the last minute. Seconds: gateway or engine lack processor.",
            queries=(Query("max by (pod) (sapwood_gateway_event_lag_seconds{@program})", "{{pod}}"),),
            unit="s",
            limits=(Limit(value=1.0, colour="yellow"),),
            runbook="EventGaps",
        ),
        Panel(
            title="Gaps in events",
            description="missed: batches never came. broken: an engine cannot be followed. snapshot: a new engine.",
            queries=(rate("sapwood_gateway_event_gaps_total", matchers="@program", by="reason"),),
            unit="ops",
            kind="stacked",
            runbook="EventGaps",
        ),
    ),
)

PREFIX_ROUTING = Dashboard(
    uid="sapwood-prefix-routing",
    title="Sapwood / Prefix routing",
    description="Whether requests go where their beginnings are, and how well the gateway knows that.",
    subject="sapwood_gateway_build_info",
    variables=("namespace", "pod"),
    rows=(_CHOICES, _KNOWLEDGE),
)
