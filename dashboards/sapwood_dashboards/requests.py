"""Requests: where the time of a request goes, phase by phase."""

from __future__ import annotations

from sapwood_dashboards.panels import Dashboard, Limit, Panel, Query, Row, percentiles, rate

_FIRST = "sapwood_time_to_first_token_seconds"
_BETWEEN = "sapwood_inter_token_latency_seconds"

_FIRST_TOKEN = Row(
    "Until the first token",
    (
        Panel(
            title="Time to first token",
            description="How many requests took how long. Two bands: some prompts are cached and others are not.",
            queries=(
                Query(f"sum by (le) (increase({_FIRST}_bucket{{@pod}}[$__rate_interval]))", "{{le}}", exemplar=True),
            ),
            unit="s",
            kind="heatmap",
            runbook="TTFTBudgetBurn",
        ),
        Panel(
            title="Time to first token by what was cached",
            description=(
                "p90 of prompts of which nothing, a part, or more than half was cached. Near each other: waiting, not"
                " computing, takes the time."
            ),
            queries=percentiles(_FIRST, matchers="@pod", by="cached", shares=(0.9,)),
            unit="s",
            limits=(Limit(value=2.0),),
            runbook="TTFTBudgetBurn",
        ),
        Panel(
            title="Time in the queue",
            description="From arrival to the first step. It grows before anything else does: add replicas.",
            queries=percentiles("sapwood_queue_time_seconds", matchers="@pod"),
            unit="s",
            limits=(Limit(value=1.0, colour="yellow"),),
            runbook="QueueSaturated",
        ),
    ),
)

_ANSWER = Row(
    "The answer",
    (
        Panel(
            title="Time between tokens",
            description="How many tokens came how long after the one before. A band high up: prefills hold decodes up.",
            queries=(
                Query(f"sum by (le) (increase({_BETWEEN}_bucket{{@pod}}[$__rate_interval]))", "{{le}}", exemplar=True),
            ),
            unit="s",
            kind="heatmap",
        ),
        Panel(
            title="Time per token, mean of a request",
            description="What a reader sees as the speed of the answer.",
            queries=percentiles("sapwood_time_per_output_token_seconds", matchers="@pod"),
            unit="s",
            limits=(Limit(value=0.1, colour="yellow"),),
        ),
        Panel(
            title="Whole requests",
            description="From arrival to the last token. It follows the lengths of answers; compare it with itself.",
            queries=percentiles("sapwood_request_duration_seconds", matchers="@pod"),
            unit="s",
        ),
    ),
)

_PARTS = Row(
    "Parts",
    (
        Panel(
            title="Where a mean request spends its time",
            description=(
                "Phases one upon the other. Queue: too few replicas. Prefill: long prompts that are not cached. Decode:"
                " long answers, or too many at once."
            ),
            queries=(
                Query(
                    "sum by (phase) (rate(sapwood_request_phase_seconds_sum{@pod}[$__rate_interval]))"
                    " / (sum by (phase) (rate(sapwood_request_phase_seconds_count{@pod}[$__rate_interval])) > 0)",
                    "{{phase}}",
                ),
            ),
            unit="s",
            kind="stacked",
            width=12,
        ),
        Panel(
            title="Endings",
            description="length: answers cut at max_tokens. abort: clients that left. error: see the engine's log.",
            queries=(rate("sapwood_requests_total", matchers="@pod", by="finish_reason"),),
            unit="reqps",
            kind="stacked",
            runbook="AvailabilityBudgetBurn",
            width=12,
        ),
        Panel(
            title="Answers by status",
            description="Calls of engines' API. 429: no room. 499: the client left. 503: no worker, or draining.",
            queries=(rate("sapwood_http_requests_total", matchers="@pod", by="code"),),
            unit="reqps",
            kind="stacked",
            runbook="AvailabilityBudgetBurn",
            width=12,
        ),
        Panel(
            title="Tokens of a mean request",
            description="Of its prompt and of its answer. A jump here explains a jump in every time above.",
            width=12,
            queries=(
                Query(
                    'sum(rate(sapwood_prompt_tokens_total{@pod,source!="recompute"}[$__rate_interval]))'
                    " / (sum(rate(sapwood_requests_total{@pod}[$__rate_interval])) > 0)",
                    "prompt",
                ),
                Query(
                    "sum(rate(sapwood_generation_tokens_total{@pod}[$__rate_interval]))"
                    " / (sum(rate(sapwood_requests_total{@pod}[$__rate_interval])) > 0)",
                    "answer",
                ),
            ),
        ),
    ),
)

REQUESTS = Dashboard(
    uid="sapwood-requests",
    title="Sapwood / Requests",
    description="Where the time of a request goes.",
    subject="sapwood_build_info",
    rows=(_FIRST_TOKEN, _ANSWER, _PARTS),
)
