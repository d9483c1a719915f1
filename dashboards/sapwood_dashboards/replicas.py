"""Replicas: which engine is different from the others, and how long each took to start."""

from __future__ import annotations

from sapwood_dashboards.panels import Dashboard, Limit, Panel, Query, Row, hit_ratio, percentiles

_POD = "{{pod}}"

_STATE = Row(
    "State",
    (
        Panel(
            title="Replicas by state",
            description="loading and warming for long: see the time of starts below. draining: being taken away.",
            queries=(Query("sum by (state) (sapwood_engine_state{@pod})", "{{state}}"),),
            kind="stacked",
            runbook="ReplicaStuckLoading",
        ),
        Panel(
            title="Time of the start",
            description=(
                "By phase. load: reading weights, which a cache of models makes short. compile: kernels, kept where the"
                " cache is a volume."
            ),
            queries=(Query("sum by (pod, phase) (sapwood_startup_seconds{@pod})", "{{phase}} {{pod}}"),),
            unit="s",
            kind="bars",
            runbook="ReplicaStuckLoading",
        ),
        Panel(
            title="What runs",
            description="Replicas by version, and by model. Two lines during a rollout; afterwards it did not end.",
            queries=(
                Query(
                    "count by (version, python) (sapwood_build_info{@pod})", "Sapwood {{version}}, Python {{python}}"
                ),
                Query("count by (model, revision) (sapwood_model_info{@pod})", "{{model}} {{revision}}"),
            ),
            kind="bars",
        ),
    ),
)

_LOAD = Row(
    "One beside the other",
    (
        Panel(
            title="Running requests",
            description="Uneven for minutes: prefixes draw requests to one replica, or one has trouble.",
            queries=(Query("sum by (pod) (sapwood_requests_running{@pod})", _POD),),
        ),
        Panel(
            title="Requests a second",
            description="Ended, however they ended.",
            queries=(Query("sum by (pod) (rate(sapwood_requests_total{@pod}[$__rate_interval]))", _POD),),
            unit="reqps",
        ),
        Panel(
            title="Failed requests",
            description="Of one replica alone: its node, or its disk. Delete the pod; a new one takes its place.",
            queries=(
                Query(
                    'sum by (pod) (rate(sapwood_requests_total{@pod,finish_reason="error"}[$__rate_interval]))', _POD
                ),
            ),
            unit="reqps",
            runbook="AvailabilityBudgetBurn",
        ),
        Panel(
            title="Time to first token, p90",
            description="One above the others: a slow node, or longer prompts than theirs.",
            queries=percentiles("sapwood_time_to_first_token_seconds", matchers="@pod", by="pod", shares=(0.9,)),
            unit="s",
            limits=(Limit(value=2.0),),
            runbook="TTFTBudgetBurn",
        ),
        Panel(
            title="Time between tokens, p90",
            description="One above the others: a slow node, or other programs on it.",
            queries=percentiles("sapwood_inter_token_latency_seconds", matchers="@pod", by="pod", shares=(0.9,)),
            unit="s",
            limits=(Limit(value=0.1, colour="yellow"),),
        ),
        Panel(
            title="Prompt tokens found in the cache",
            description="With prefix affinity each should find about the same share.",
            queries=(hit_ratio("pod", legend=_POD),),
            unit="percentunit",
        ),
        Panel(
            title="KV memory in use",
            description="Share that running requests hold.",
            queries=(Query("max by (pod) (sapwood_kv_usage_ratio{@pod})", _POD),),
            unit="percentunit",
            limits=(Limit(value=0.95, colour="yellow"),),
        ),
        Panel(
            title="KV capacity",
            description="Tokens. It follows the memory that was free at the start: alike on alike nodes.",
            queries=(Query("max by (pod) (sapwood_kv_capacity_tokens{@pod})", _POD),),
        ),
        Panel(
            title="Tokens of a KV page",
            description="Prefixes are found by whole pages. By --page-size; alike in all replicas of a service.",
            queries=(Query("max by (pod) (sapwood_kv_page_tokens{@pod})", _POD),),
            kind="stat",
        ),
    ),
)

REPLICAS = Dashboard(
    uid="sapwood-replicas",
    title="Sapwood / Replicas",
    description="Which engine is different from the others, and how long each took to start.",
    subject="sapwood_build_info",
    rows=(_STATE, _LOAD),
)
