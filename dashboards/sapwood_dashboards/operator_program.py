"""Operator: whether what is asked for is being made."""

from __future__ import annotations

from sapwood_dashboards.panels import Dashboard, Limit, Panel, Query, Row, percentiles, rate

_WORK = Row(
    "Work",
    (
        Panel(
            title="Who leads",
            description="1 for the one that acts. None: nothing is made; look at the operator's pods.",
            queries=(Query("max by (pod) (sapwood_operator_leader{@program})", "{{pod}}"),),
            kind="stat",
            limits=(Limit(value=1, colour="green"),),
            below="red",
        ),
        Panel(
            title="Objects that wait",
            description="For a turn. Growing: turns take too long, or the API server is slow.",
            queries=(Query("sum by (kind) (sapwood_operator_queue_depth{@program})", "{{kind}}"),),
            kind="stat",
            limits=(Limit(value=50, colour="yellow"),),
        ),
        Panel(
            title="Turns that failed, 1 h",
            description="They are tried again. Of one object again and again: its status and events say why.",
            queries=(
                Query("sum by (kind) (increase(sapwood_operator_reconcile_errors_total{@program}[1h]))", "{{kind}}"),
            ),
            kind="stat",
            limits=(Limit(value=1, colour="yellow"),),
        ),
    ),
)

_TURNS = Row(
    "Turns",
    (
        Panel(
            title="Turns a second",
            description="Without a change of anything there are few; many: something changes an object all the time.",
            queries=(rate("sapwood_operator_reconcile_seconds_count", matchers="@program", by="kind"),),
            unit="ops",
            kind="stacked",
        ),
        Panel(
            title="Time of a turn",
            description="More than a second: the API server is slow.",
            queries=percentiles(
                "sapwood_operator_reconcile_seconds", matchers="@program", by="kind", shares=(0.5, 0.99)
            ),
            unit="s",
            limits=(Limit(value=1.0, colour="yellow"),),
        ),
        Panel(
            title="Failed turns",
            description="Turns that left something to try again.",
            queries=(rate("sapwood_operator_reconcile_errors_total", matchers="@program", by="kind"),),
            unit="ops",
            kind="stacked",
        ),
        Panel(
            title="Objects waiting for a turn",
            description="A hill after a start or a change of many; it should go down again within seconds.",
            queries=(Query("sum by (kind) (sapwood_operator_queue_depth{@program})", "{{kind}}"),),
            width=12,
        ),
        Panel(
            title="Writes to the API server",
            description="The five most. None while nothing changes: who always writes fights somebody over an object.",
            queries=(
                Query(
                    "topk(5,"
                    " sum by (kind, verb) (rate(sapwood_operator_api_writes_total{@program}[$__rate_interval])))",
                    "{{verb}} {{kind}}",
                ),
            ),
            unit="ops",
            kind="stacked",
            width=12,
        ),
    ),
)

OPERATOR = Dashboard(
    uid="sapwood-operator",
    title="Sapwood / Operator",
    description="Whether what is asked for is being made.",
    subject="sapwood_operator_leader",
    variables=("namespace", "pod"),
    rows=(_WORK, _TURNS),
)
