"""Gateway: what comes in, what is refused or fails, and what the gateway adds."""

from __future__ import annotations

from sapwood_dashboards.panels import Dashboard, Limit, Panel, Query, Row, percentiles, rate

_TRAFFIC = Row(
    "Requests",
    (
        Panel(
            title="Answers by status",
            description="429: refused, see below by why. 499: the client left. 5xx: no replica gave an answer.",
            queries=(rate("sapwood_gateway_requests_total", matchers="@program", by="code"),),
            unit="reqps",
            kind="stacked",
            runbook="AvailabilityBudgetBurn",
        ),
        Panel(
            title="Failed",
            description="Share of answers with a 5xx, refusals not counted. One in a hundred may.",
            queries=tuple(
                Query(
                    f"gateway:sapwood_availability_error:ratio_rate{window}{{@namespace}}",
                    f"{window} {{{{inference_service}}}}",
                )
                for window in ("5m", "1h")
            ),
            unit="percentunit",
            limits=(Limit(value=0.01, colour="yellow"), Limit(value=0.06)),
            runbook="AvailabilityBudgetBurn",
        ),
        Panel(
            title="On their way",
            description="Requests at replicas, or their answers on the way back.",
            queries=(Query("sum by (pod) (sapwood_gateway_requests_running{@program})", "{{pod}}"),),
        ),
    ),
)

_REFUSED = Row(
    "Waiting and refused",
    (
        Panel(
            title="Waiting for a replica",
            description="Where services let requests wait. For minutes: no replica has room, or none comes up.",
            queries=(
                Query(
                    "sum by (inference_service) (sapwood_gateway_queued_requests{@program})", "{{inference_service}}"
                ),
            ),
            runbook="QueueSaturated",
        ),
        Panel(
            title="How long they waited",
            description="Also those that got none. Near the service's longest wait, they time out.",
            queries=percentiles("sapwood_gateway_queue_time_seconds", matchers="@program"),
            unit="s",
            runbook="QueueSaturated",
        ),
        Panel(
            title="Refused",
            description=(
                "rate, quota: a tenant's limits. overload: no room to wait. auth: no key, or a wrong one; many of a"
                " sudden: a key was changed."
            ),
            queries=(rate("sapwood_gateway_rejected_total", matchers="@program", by="reason"),),
            unit="reqps",
            kind="stacked",
        ),
    ),
)

_REPLICAS = Row(
    "Replicas and what they stand on",
    (
        Panel(
            title="Replicas by what they can take",
            description="resting: after failures in a row. None fit: every request fails, or waits.",
            queries=(Query("max by (state) (sapwood_gateway_replicas{@program})", "{{state}}"),),
            kind="stacked",
            runbook="AvailabilityBudgetBurn",
        ),
        Panel(
            title="Failed attempts",
            description=(
                "connect: nobody listens. broken, cut: the answer ended too soon. busy, unavailable: it said so. Others"
                " are tried, so users need not notice."
            ),
            queries=(rate("sapwood_gateway_attempt_failures_total", matchers="@program", by="reason"),),
            unit="ops",
            kind="stacked",
            runbook="AvailabilityBudgetBurn",
        ),
        Panel(
            title="What the gateway adds",
            description="From a request's last byte to its sending, waits left out. Above 10 ms it lacks processor.",
            queries=percentiles("sapwood_gateway_overhead_seconds", matchers="@program"),
            unit="s",
            limits=(Limit(value=0.01, colour="yellow"),),
        ),
        Panel(
            title="Questions without an answer",
            description=(
                "cluster: of the API server, about services and replicas; the gateway goes on with what it knew."
                " quota store: Redis; --quota-store-failure says what happens then."
            ),
            queries=(
                rate("sapwood_gateway_discovery_failures_total", matchers="@program", legend="cluster"),
                rate("sapwood_gateway_quota_store_failures_total", matchers="@program", legend="quota store"),
            ),
            unit="ops",
            width=12,
        ),
        Panel(
            title="Versions",
            description="Gateways by version. Two during a rollout; afterwards it did not end.",
            queries=(Query("count by (version) (sapwood_gateway_build_info{@program})", "{{version}}"),),
            kind="stat",
            width=12,
        ),
    ),
)

GATEWAY = Dashboard(
    uid="sapwood-gateway",
    title="Sapwood / Gateway",
    description="What comes in, what is refused or fails, and what the gateway adds.",
    subject="sapwood_gateway_build_info",
    variables=("namespace", "pod"),
    rows=(_TRAFFIC, _REFUSED, _REPLICAS),
)
