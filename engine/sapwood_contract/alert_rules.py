"""Recording rules and alerts as data. PromQL is written once, with ``@`` where a service's own matchers go.

Names of series are those of `sapwood_contract.metrics`. No rule takes what is absent for zero: a ratio of nothing is
absent, so that a service scaled to none is silent. A rate is taken of each series before any sum, so that a restart is
no fall.

Of the design's alerts SpecDecodeUseless (speculative decoding) has no series to look at yet, and comes with those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sapwood_contract.metrics import BY_NAME

Severity = Literal["critical", "warning"]

TTFT_BORDERS = BY_NAME["sapwood_time_to_first_token_seconds"].buckets
"""The only times to first token that an objective can be stated in, seconds: between two nobody has counted."""
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
"""Over which error ratios are recorded."""
MIN_BAD_REQUESTS = 10
"""The volume guard: fewer bad requests than this in the longer window burn no budget, whatever their share."""

_BY_SERVICE = "namespace, inference_service"
_BY_REPLICA = "namespace, inference_service, pod"
_SERVICE = "{{ $labels.namespace }}/{{ $labels.inference_service }}"


class InvalidObjectives(ValueError):
    """An objective that cannot be measured; the message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceObjectives:
    """What a service promises its users."""

    ttft_seconds: float = 2.0
    """One of `TTFT_BORDERS`."""
    ttft_ratio: float = 0.9
    """Share of the requests whose first token comes within ``ttft_seconds``."""
    availability: float = 0.99
    """Share of the requests that are not answered with a 5xx. A refusal (4xx) is neither good nor bad, and neither is a
    request whose client left."""

    def __post_init__(self) -> None:
        """Refuse what no rule could be made of: raises `InvalidObjectives`."""
        if self.ttft_seconds not in TTFT_BORDERS:
            borders = ", ".join(f"{border:g}" for border in TTFT_BORDERS)
            raise InvalidObjectives(f"ttft_seconds is {self.ttft_seconds!r}; give one of {borders}")
        for name, value in (("ttft_ratio", self.ttft_ratio), ("availability", self.availability)):
            if not 0.5 <= value < 1:
                raise InvalidObjectives(f"{name} is {value!r}; give a share from 0.5 to below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One recorded series."""

    name: str
    expr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert; texts as Prometheus expands them."""

    name: str
    expr: str
    severity: Severity
    summary: str
    description: str
    pending: str = ""
    """How long it must hold before it fires, a Prometheus duration; empty for at once."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Requests of which a share must be good."""

    alert: str
    record: str
    """Start of the names of its recorded error ratios."""
    bad: str
    total: str
    """How many a second over the window ``$w``, by the labels of what has a budget of its own."""
    target: float
    component: str
    subject: str
    """Whose budget it is, as alerts name it."""
    summary: str
    complaint: str
    """What bad requests did."""

    def ratio(self, window: str) -> str:
        """Return the name of the error ratio over ``window``."""
        return f"{self.record}:ratio_rate{window}"

    def recording(self, window: str) -> Recording:
        """Return the rule of the error ratio over ``window``; absent where there were no requests."""
        return Recording(name=self.ratio(window), expr=f"{self.bad} / ({self.total} > 0)".replace("$w", window))


@dataclass(frozen=True, slots=True)
class Burn:
    """How fast a month's budget may go: over a long window and, so that the alert ends soon after, a short one."""

    factor: float
    long: str
    short: str
    severity: Severity

    def threshold(self, target: float) -> float:
        """Return the error ratio above which it is too fast.

        With nine tenths promised, 14.4 times the budget is more than all requests, and nothing could reach it: the
        share that must be good is the most that is waited for.
        """
        return round(min(self.factor * (1 - target), target), 6)


BURNS = (
    Burn(14.4, "1h", "5m", "critical"),
    Burn(6.0, "6h", "30m", "critical"),
    Burn(3.0, "1d", "2h", "warning"),
    Burn(1.0, "3d", "6h", "warning"),
)
"""2 %, 5 %, 10 % and 10 % of 30 days' budget within the long window: Google's SRE workbook, chapter 5."""


def burn_alerts(objective: Objective) -> list[Alert]:
    """Return the alerts on how fast the budget of ``objective`` goes, the fastest first."""
    return [_burn_alert(objective, burn) for burn in BURNS]


def _burn_alert(objective: Objective, burn: Burn) -> Alert:
    threshold = f"{burn.threshold(objective.target):g}"
    num_bad = objective.bad.replace("rate(", "increase(").replace("$w", burn.long)
    return Alert(
        name=objective.alert,
        expr=(
            f"{objective.ratio(burn.long)}{{@}} > {threshold} and {objective.ratio(burn.short)}{{@}} > {threshold}"
            f" and {num_bad} >= {MIN_BAD_REQUESTS}"
        ),
        severity=burn.severity,
        summary=f"{objective.summary}: {objective.subject}",
        description=(
            f"{{{{ $value | humanizePercentage }}}} of the requests of the last {burn.long} {objective.complaint}, and"
            f" more than {100 * burn.threshold(objective.target):g}% of those of the last {burn.short} too;"
            f" {100 * (1 - objective.target):g}% may."
        ),
        labels={"burn": f"{burn.factor:g}x", "component": objective.component},
    )


# --- engines

CACHE_RECORDINGS = tuple(
    Recording(
        name=f"inference_service:sapwood_{name}:ratio_rate{window}",
        expr=(
            f'sum by ({_BY_SERVICE}) (rate(sapwood_prompt_tokens_total{{@,source=~"{sources}"}}[{window}]))'
            f' / (sum by ({_BY_SERVICE}) (rate(sapwood_prompt_tokens_total{{@,source!="recompute"}}[{window}])) > 0)'
        ),
    )
    for name, sources in (("cache_hit", "device|host|disk|remote"), ("recompute", "recompute"))
    for window in ("5m", "1h")
)
"""Hit ratio: prompt tokens whose KV was there, of all prompt tokens. What is computed again after a preemption is no
prompt's first: it counts apart, against the same total."""


def engine_objectives(objectives: ServiceObjectives) -> tuple[Objective, ...]:
    """Return what the engines of a service promise."""
    # As engines write it: Prometheus compares the label's text.
    in_time = f'_bucket{{@,le="{float(objectives.ttft_seconds)!r}"}}'
    timed = f"sum by ({_BY_SERVICE}) (rate(sapwood_time_to_first_token_seconds%s[$w]))"
    answered = f"sum by ({_BY_SERVICE}) (rate(sapwood_http_requests_total{{@,code%s}}[$w]))"
    ttft = Objective(
        alert="TTFTBudgetBurn",
        record="inference_service:sapwood_ttft_error",
        bad=f"({timed % '_count{@}'} - {timed % in_time})",
        total=timed % "_count{@}",
        target=objectives.ttft_ratio,
        component="engine",
        subject=_SERVICE,
        summary="First tokens come late",
        complaint=f"waited more than {objectives.ttft_seconds:g} s for their first token",
    )
    availability = Objective(
        alert="AvailabilityBudgetBurn",
        record="inference_service:sapwood_availability_error",
        # Of HTTP, not of the scheduler's requests: an engine whose worker is gone takes none, and fails every call.
        bad=answered % '=~"5.."',
        total=answered % '!~"4.."',
        target=objectives.availability,
        component="engine",
        subject=_SERVICE,
        summary="Engines fail requests",
        complaint="were answered with a 5xx by an engine",
    )
    return ttft, availability


_COMPUTED = (
    f'(sum by ({_BY_SERVICE}) (rate(sapwood_prompt_tokens_total{{@,source=~"compute|recompute"}}[5m]))'
    f" + sum by ({_BY_SERVICE}) (rate(sapwood_generation_tokens_total{{@}}[5m])))"
)
"""Tokens that engines compute a second."""

ENGINE_ALERTS = (
    Alert(
        name="CacheThrashing",
        expr=(
            f"sum by ({_BY_SERVICE}) (rate(sapwood_regret_tokens_total{{@}}[15m]))"
            f' / (sum by ({_BY_SERVICE}) (rate(sapwood_prompt_tokens_total{{@,source="compute"}}[15m])) > 0) > 0.2'
            f" and sum by ({_BY_SERVICE}) (increase(sapwood_regret_tokens_total{{@}}[15m]))"
            f" > 0.1 * sum by ({_BY_SERVICE}) (sapwood_kv_capacity_tokens{{@}})"
        ),
        severity="warning",
        pending="15m",
        summary=f"The prefix cache is too small for its load: {_SERVICE}",
        description=(
            "{{ $value | humanizePercentage }} of the prompt tokens computed in the last 15m had been in the cache a"
            " short time before; twice the capacity would have kept them."
        ),
    ),
    Alert(
        name="PreemptionStorm",
        # Not a share of requests: where nothing ends any more there would be no share.
        expr=(
            f'sum by ({_BY_SERVICE}) (rate(sapwood_preempted_tokens_total{{@,reason="kv_full"}}[5m]))'
            f" > 0.2 * {_COMPUTED}"
        ),
        severity="warning",
        pending="10m",
        summary=f"Running requests are thrown back for want of KV: {_SERVICE}",
        description=(
            "{{ $value | humanize }} tokens a second lose their place in the KV cache before their requests are done,"
            " more than a fifth of what is computed."
        ),
    ),
    Alert(
        name="QueueSaturated",
        # Means, for a queue that is empty at one scrape in ten is saturated all the same.
        expr=(
            f"sum by ({_BY_SERVICE}) (avg_over_time(sapwood_requests_waiting{{@}}[5m]))"
            f" > sum by ({_BY_SERVICE}) (avg_over_time(sapwood_requests_running{{@}}[5m]))"
        ),
        severity="warning",
        pending="5m",
        summary=f"More requests wait in engines than run: {_SERVICE}",
        description="{{ $value | humanize }} requests wait on average, more than run.",
        labels={"component": "engine"},
    ),
    Alert(
        name="ReplicaStuckLoading",
        # Longer than Kubernetes' longest back-off (5m) and the way to the first scrape: a container that restarts
        # again and again is seen through its absences. One that was taken away is seen as long: it may not fire.
        expr=f'max by ({_BY_REPLICA}) (max_over_time(sapwood_engine_state{{@,state=~"ready|draining"}}[10m])) == 0',
        severity="warning",
        pending="20m",
        summary=f"A replica does not become ready: {_SERVICE}",
        description="Pod {{ $labels.pod }} has been loading or warming for 20m, in one start or in many.",
    ),
    Alert(
        name="CacheInvariantBroken",
        # Not an increase: the count may be 1 at the first scrape, and stays true while the process lives.
        expr=f"sum by ({_BY_REPLICA}) (max_over_time(sapwood_cache_invariant_failures_total{{@}}[5m])) > 0",
        severity="critical",
        summary=f"A prefix cache broke its own rules: {_SERVICE}",
        description=(
            "The engine in pod {{ $labels.pod }} has failed {{ $value }} integrity checks since it started, and serves"
            " without its cache."
        ),
    ),
)

# --- gateways, whose own series name the service as ``namespace/name``


def gateway_objective(objectives: ServiceObjectives) -> Objective:
    """Return what users get at the gateway, every service alike."""
    counted = f"sum by ({_BY_SERVICE}) (rate(sapwood_gateway_requests_total{{code%s}}[$w]))"
    return Objective(
        alert="AvailabilityBudgetBurn",
        record="gateway:sapwood_availability_error",
        bad=counted % '=~"5.."',
        total=counted % '!~"4.."',
        target=objectives.availability,
        component="gateway",
        subject="{{ $labels.inference_service }}",
        summary="Users get errors from the gateway",
        complaint="were answered with a 5xx by the gateway",
    )


GATEWAY_ALERTS = (
    Alert(
        name="QueueSaturated",
        expr=f"sum by ({_BY_SERVICE}) (min_over_time(sapwood_gateway_queued_requests[5m])) > 0",
        severity="warning",
        pending="5m",
        summary="Requests always wait at the gateway: {{ $labels.inference_service }}",
        description="At no moment of the last 5m did fewer than {{ $value }} requests wait for a replica.",
        labels={"component": "gateway"},
    ),
    Alert(
        name="EventGaps",
        # All blocks are asked for at each engine's start: that one kind is no gap.
        expr=(
            'sum by (namespace, pod, reason) (increase(sapwood_gateway_event_gaps_total{reason!="snapshot"}[15m])) > 2'
        ),
        severity="warning",
        summary="A gateway misses what engines say of their caches",
        description=(
            "Gateway {{ $labels.pod }} has lost {{ $value | humanize }} times in 15m what engines publish"
            " ({{ $labels.reason }}); it routes by prefix less well for that."
        ),
    ),
)
