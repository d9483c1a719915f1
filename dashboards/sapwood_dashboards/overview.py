"""Overview and objectives: is everybody served, fast enough, and what is left of the month's budgets."""

from __future__ import annotations

from sapwood_dashboards.panels import Dashboard, Limit, Panel, Query, Row, percentiles, rate

_LATE = (Limit(value=0.1, colour="yellow"), Limit(value=0.6))
"""The objective (nine in ten in time), and what burns a budget six times too fast."""
_FAILED = (Limit(value=0.01, colour="yellow"), Limit(value=0.06))
_RATIO = "inference_service:sapwood_%s:ratio_rate%s{@service}"
_WHOSE = "{{namespace}}/{{inference_service}}"

_NOW = Row(
    "Now",
    (
        Panel(
            title="Ready replicas",
            description="Engines that take requests. Fewer than you asked for: see Replicas for what the others do.",
            queries=(
                Query('sum by (namespace, inference_service) (sapwood_engine_state{@pod,state="ready"})', _WHOSE),
            ),
            kind="stat",
            limits=(Limit(value=1, colour="green"),),
            below="red",
            runbook="ReplicaStuckLoading",
            width=4,
        ),
        Panel(
            title="Requests a second",
            description="Requests that engines ended, however. None, while users call: look at the gateway.",
            queries=(Query("sum(rate(sapwood_requests_total{@pod}[$__rate_interval]))"),),
            unit="reqps",
            kind="stat",
            width=4,
        ),
        Panel(
            title="First tokens late, 1 h",
            description="Share of requests that waited longer than the objective (2 s unless set). One in ten may.",
            queries=(Query(_RATIO % ("ttft_error", "1h"), _WHOSE),),
            unit="percentunit",
            kind="stat",
            limits=_LATE,
            runbook="TTFTBudgetBurn",
            width=4,
        ),
        Panel(
            title="Failed in engines, 1 h",
            description="Share of requests that engines answered with a 5xx; refusals (4xx) are not counted.",
            queries=(Query(_RATIO % ("availability_error", "1h"), _WHOSE),),
            unit="percentunit",
            kind="stat",
            limits=_FAILED,
            runbook="AvailabilityBudgetBurn",
            width=4,
        ),
        Panel(
            title="Failed at gateways, 1 h",
            description=(
                "Share of answers that were a 5xx, of all gateways. With engines well, no replica could be reached: see"
                " Gateway."
            ),
            queries=(Query("gateway:sapwood_availability_error:ratio_rate1h", "{{inference_service}}"),),
            unit="percentunit",
            kind="stat",
            limits=_FAILED,
            runbook="AvailabilityBudgetBurn",
            width=4,
        ),
        Panel(
            title="Hit ratio, 1 h",
            description=(
                "Share of prompt tokens whose KV was cached. What is usual depends on the prompts; a fall without a"
                " change of them: see Radix cache."
            ),
            queries=(Query(_RATIO % ("cache_hit", "1h"), _WHOSE),),
            unit="percentunit",
            kind="stat",
            runbook="CacheThrashing",
            width=4,
        ),
    ),
)

_BUDGETS = Row(
    "Error budgets",
    (
        Panel(
            title="First tokens late",
            description=(
                "Over the windows that alerts look at. Above the yellow line the month's budget will not last; the"
                " short windows say whether it goes on."
            ),
            queries=tuple(
                Query(_RATIO % ("ttft_error", window), f"{window} {_WHOSE}") for window in ("5m", "1h", "6h", "3d")
            ),
            unit="percentunit",
            limits=_LATE,
            runbook="TTFTBudgetBurn",
        ),
        Panel(
            title="Failed in engines",
            description="Requests that engines answered with a 5xx: their logs say why, by request id.",
            queries=tuple(
                Query(_RATIO % ("availability_error", window), f"{window} {_WHOSE}")
                for window in ("5m", "1h", "6h", "3d")
            ),
            unit="percentunit",
            limits=_FAILED,
            runbook="AvailabilityBudgetBurn",
        ),
        Panel(
            title="Failed at gateways",
            description="Answers with a 5xx, of all gateways: what users see, also where no engine is left to count.",
            queries=tuple(
                Query(f"gateway:sapwood_availability_error:ratio_rate{window}", f"{window} {{{{inference_service}}}}")
                for window in ("5m", "1h", "6h", "3d")
            ),
            unit="percentunit",
            limits=_FAILED,
            runbook="AvailabilityBudgetBurn",
        ),
    ),
)

_USERS = Row(
    "What users feel",
    (
        Panel(
            title="Time to first token",
            description=(
                "From arrival at an engine. p99 far above p90: long prompts, or a queue. Points are traces: open one to"
                " see where the time went."
            ),
            queries=percentiles("sapwood_time_to_first_token_seconds", matchers="@pod"),
            unit="s",
            limits=(Limit(value=2.0),),
            runbook="TTFTBudgetBurn",
        ),
        Panel(
            title="Time between tokens",
            description="Of one stream. It rises with the number of requests that run, and where prefills take turns.",
            queries=percentiles("sapwood_inter_token_latency_seconds", matchers="@pod"),
            unit="s",
            limits=(Limit(value=0.1, colour="yellow"),),
        ),
        Panel(
            title="Requests by ending",
            description="abort: the client left; many of them mean that answers come too late. error: see the log.",
            queries=(rate("sapwood_requests_total", matchers="@pod", by="finish_reason"),),
            unit="reqps",
            kind="stacked",
            runbook="AvailabilityBudgetBurn",
        ),
    ),
)

_CAPACITY = Row(
    "Capacity",
    (
        Panel(
            title="Tokens a second",
            description="Prompts in, answers out. Level while requests wait: this is what the replicas can do.",
            queries=(
                Query('sum(rate(sapwood_prompt_tokens_total{@pod,source!="recompute"}[$__rate_interval]))', "prompts"),
                rate("sapwood_generation_tokens_total", matchers="@pod", legend="answers"),
            ),
            unit="ops",
        ),
        Panel(
            title="Requests in engines",
            description="More waiting than running, for minutes: add replicas.",
            queries=(
                Query("sum(sapwood_requests_running{@pod})", "running"),
                Query("sum(sapwood_requests_waiting{@pod})", "waiting"),
            ),
            kind="stacked",
            runbook="QueueSaturated",
        ),
        Panel(
            title="KV memory",
            description="Tokens by state. Without evictable or free ones, a request that grows pushes another out.",
            queries=(Query("sum by (state) (sapwood_kv_tokens{@pod})", "{{state}}"),),
            kind="stacked",
            runbook="PreemptionStorm",
        ),
    ),
)

OVERVIEW = Dashboard(
    uid="sapwood-overview",
    title="Sapwood / Overview",
    description="Is everybody served, fast enough, and how fast do the month's error budgets go.",
    subject="sapwood_build_info",
    rows=(_NOW, _BUDGETS, _USERS, _CAPACITY),
)
