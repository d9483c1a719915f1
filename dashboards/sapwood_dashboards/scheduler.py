"""Scheduler: what runs and waits, how steps are filled, and who is thrown back."""

from __future__ import annotations

from sapwood_dashboards.panels import Dashboard, Limit, Panel, Query, Row, percentiles, rate

_QUEUE = Row(
    "Queue",
    (
        Panel(
            title="Running and waiting",
            description="Waiting for KV memory, or for a place among those that run. For minutes: add replicas.",
            queries=(
                Query("sum by (pod) (sapwood_requests_running{@pod})", "running {{pod}}"),
                Query("sum by (pod, reason) (sapwood_requests_waiting{@pod})", "waiting {{pod}} ({{reason}})"),
            ),
            kind="stacked",
            runbook="QueueSaturated",
            width=12,
        ),
        Panel(
            title="Tokens that wait to be computed",
            description="By what was cached when each request was last looked at. By the speed of prefill: the wait.",
            queries=(Query("sum by (pod) (sapwood_requests_waiting_tokens{@pod})", "{{pod}}"),),
            runbook="QueueSaturated",
            width=12,
        ),
        Panel(
            title="Time in the queue",
            description="From arrival to the first admission.",
            queries=percentiles("sapwood_queue_time_seconds", matchers="@pod"),
            unit="s",
            limits=(Limit(value=1.0, colour="yellow"),),
            runbook="QueueSaturated",
            width=12,
        ),
        Panel(
            title="KV memory in use",
            description="Share that running requests hold. Near 1, the next that grows throws another back.",
            queries=(Query("max by (pod) (sapwood_kv_usage_ratio{@pod})", "{{pod}}"),),
            unit="percentunit",
            limits=(Limit(value=0.95, colour="yellow"),),
            runbook="PreemptionStorm",
            width=12,
        ),
    ),
)

_STEPS = Row(
    "Steps",
    (
        Panel(
            title="Time of a step",
            description="By what it computes. Decode steps are the time between tokens; mixed ones carry prompts too.",
            queries=percentiles("sapwood_step_seconds", matchers="@pod", by="kind", shares=(0.5, 0.99)),
            unit="s",
        ),
        Panel(
            title="Steps a second",
            description="None, while requests run: the engine hangs; it ends itself after --step-timeout-seconds.",
            queries=(rate("sapwood_step_seconds_count", matchers="@pod", by="kind"),),
            unit="ops",
            kind="stacked",
        ),
        Panel(
            title="Device busy",
            description=(
                "Share of the time in steps. Well below 1 while requests wait: something else takes the time, such as"
                " other programs on the machine."
            ),
            queries=(Query("sum by (pod) (rate(sapwood_step_seconds_sum{@pod}[$__rate_interval]))", "{{pod}}"),),
            unit="percentunit",
        ),
        Panel(
            title="Tokens in a step",
            description="How full steps are. Decode steps of few tokens with requests waiting: KV memory is the limit.",
            queries=(
                Query(
                    "sum by (kind) (rate(sapwood_batch_tokens_sum{@pod}[$__rate_interval]))"
                    " / (sum by (kind) (rate(sapwood_batch_tokens_count{@pod}[$__rate_interval])) > 0)",
                    "{{kind}}",
                ),
            ),
        ),
        Panel(
            title="Sizes of steps",
            description="How many steps had how many tokens.",
            queries=(Query("sum by (le) (increase(sapwood_batch_tokens_bucket{@pod}[$__rate_interval]))", "{{le}}"),),
            kind="heatmap",
        ),
        Panel(
            title="What a step costs",
            description=(
                "Fitted to the last steps: each token and key that it computes, and what any step takes. The"
                " autoscaler reckons with it. One replica above the others: a slow node."
            ),
            queries=(Query("max by (pod, part) (sapwood_step_cost_seconds{@pod})", "{{part}} {{pod}}"),),
            unit="s",
            kind="bars",
        ),
    ),
)

_COMPUTED = (
    '(sum(rate(sapwood_prompt_tokens_total{@pod,source=~"compute|recompute"}[$__rate_interval]))'
    " + sum(rate(sapwood_generation_tokens_total{@pod}[$__rate_interval])))"
)

_PREEMPTIONS = Row(
    "Thrown back",
    (
        Panel(
            title="Preemptions",
            description="kv_full: for want of KV memory. priority: for a request that goes before, as asked for.",
            queries=(rate("sapwood_preemptions_total", matchers="@pod", by="reason"),),
            unit="ops",
            kind="stacked",
            runbook="PreemptionStorm",
        ),
        Panel(
            title="Thrown back, of what is computed",
            description="Tokens of requests that lost their place, by tokens computed. Above a fifth the alert fires.",
            queries=(
                Query(
                    'sum(rate(sapwood_preempted_tokens_total{@pod,reason="kv_full"}[$__rate_interval]))'
                    f" / ({_COMPUTED} > 0)",
                    "thrown back",
                ),
                Query("inference_service:sapwood_recompute:ratio_rate5m{@service}", "computed again, of prompts"),
            ),
            unit="percentunit",
            limits=(Limit(value=0.2),),
            runbook="PreemptionStorm",
        ),
        Panel(
            title="Tokens computed",
            description="What the device's work goes into; what was found in the cache is not here.",
            queries=(
                Query('sum(rate(sapwood_prompt_tokens_total{@pod,source="compute"}[$__rate_interval]))', "prompts"),
                Query('sum(rate(sapwood_prompt_tokens_total{@pod,source="recompute"}[$__rate_interval]))', "again"),
                rate("sapwood_generation_tokens_total", matchers="@pod", legend="answers"),
            ),
            unit="ops",
            kind="stacked",
        ),
    ),
)

SCHEDULER = Dashboard(
    uid="sapwood-scheduler",
    title="Sapwood / Scheduler",
    description="What runs and waits, how steps are filled, and who is thrown back.",
    subject="sapwood_build_info",
    rows=(_QUEUE, _STEPS, _PREEMPTIONS),
)
