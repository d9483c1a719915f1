"""What a decision is made from and what it comes to. Times are seconds, rates per second, ratios 0 to 1.

Missing is not zero: a replica that did not report has `NoReading`, a service with a live heartbeat and no arrivals has
readings of zero, and what cannot be known yet is None in its field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sapwood_contract.curve import Curve

Stage = Literal["pending", "starting", "warming", "ready", "leaving"]
"""pending: no node yet; starting: it loads; warming: it computes prefixes before it is ready; leaving: cordoned,
draining or being deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What a step's parts cost, in seconds (`sapwood_step_cost_seconds`)."""

    prefill_token: float
    prefill_key: float
    decode: float
    decode_key: float
    base: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """How many requests of the window kept to each border of a histogram, the borders rising, the last infinite."""

    borders: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    """Between the former border and this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one replica did within the last window, about a minute, and what it has to do now."""

    window_seconds: float
    arrivals: float
    """Requests a second that its scheduler took; those refused for a full queue are not among them."""
    prompt_tokens: float
    """Prompt tokens a second of requests whose prefill began."""
    cached_tokens: float
    """Of these, found in its cache."""
    generation_tokens: float
    running: float
    """Requests being computed, on average over the window's readings."""
    waiting: float
    """On average too."""
    waiting_tokens: float
    """Prefill that waits, now."""
    capacity_tokens: float
    pinned_tokens: float
    """KV that running requests hold."""
    admissions: float | None = None
    """Requests a second whose prefill began, which `prompt_tokens` are of; None: as many as arrived."""
    evicted_tokens: float = 0.0
    """A second, for want of room."""
    regret_tokens: float = 0.0
    """A second."""
    quiet_seconds: float = 0.0
    """Since it last had anything to do, as far back as it was heard; 0: it had, or nobody knows."""
    ttft: Latencies = Latencies()
    itl: Latencies = Latencies()
    cost: StepCost | None = None
    curve: Curve | None = None


@dataclass(frozen=True, slots=True)
class NoReading:
    """A replica that did not report lately, or whose numbers make no sense; ``why`` is for people."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One pod of the service; ones that ended are not among them."""

    uid: str
    name: str
    stage: Stage
    age_seconds: float
    """In its stage, as far as known; since its creation otherwise."""
    reading: Reading | NoReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the gateways have to do for the service, all together."""

    num_waiting: int
    """Held until a replica can take them."""
    num_running: int
    idle_seconds: float
    """Since the last request came or ended at any gateway."""
    routed_by_prefix: float | None = None
    """Share of the requests that went where their prefix is, or anywhere where no replica had it; None: unknown."""
    running: Mapping[str, int] = field(default_factory=dict)
    """Replica's name -> requests there."""
    is_whole: bool = True
    """Whether every gateway answered. Otherwise the counts are the least that it can be, and ``idle_seconds`` is 0:
    nobody concludes from those that answered that there is nothing to do."""


@dataclass(frozen=True, slots=True)
class NoDemand:
    """No gateway has said lately what it has to do."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What all replicas of a service together had taken at some time, since somebody began to count."""

    at: float
    """Unix time."""
    arrivals: float
    """Requests."""
    admissions: float
    """Requests whose prefill began."""
    prompt_tokens: float
    """Of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A service at one moment."""

    replicas: tuple[Replica, ...]
    current: int
    """Replicas asked for now: of the Deployment, less those that are on their way out."""
    demand: Demand | NoDemand
    rolling: bool = False
    """Pods of a former revision are left."""
    by_prefix: bool = True
    """The route's policy is PrefixAffinity: tells the affinity where no gateway does."""
    taken: tuple[Taken, ...] = ()
    """Of the last minutes, in the order of time; empty: unknown."""


Direction = Literal["up", "down", "hold"]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the number of replicas that was decided."""

    at: float
    """Unix time."""
    before: int
    after: int
    reason: str
    """One of `sapwood_contract.metrics.SCALING_REASONS`."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that is remembered from decision to decision: it lives in ``status.autoscaling``, so a new leader has it.

    Unix times; None: not now.
    """

    desired: int | None = None
    """None: nothing was ever decided."""
    fewer_since: float | None = None
    """Since when one replica fewer would have done, without a break."""
    more_since: float | None = None
    """Since when more were wanted, without a break; with ``more_least`` the least wish since then."""
    more_least: int | None = None
    waking_since: float | None = None
    """Since when a service that had none waits for its first replica to get ready."""
    blind_since: float | None = None
    """Since when too few replicas have reported."""
    unmade_since: float | None = None
    """Since when there are fewer pods than were asked for."""
    tried_tokens: int | None = None
    """Tokens a second that each replica had to compute where one fewer was decided on last; None: that never was."""
    too_many_tokens: int | None = None
    """The same where one fewer was too few although no more came than when it was decided on; None: that was not seen
    lately."""
    changes: tuple[Change, ...] = ()
    """The last ten, the newest first."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another number of replicas, and why it is not wanted."""

    replicas: int
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition of the service that the autoscaler knows."""

    type: Literal["MetricsAvailable", "AutoscalingActive", "ScalingLimited"]
    status: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided, and all that explains it."""

    desired: int
    """Wanted; in mode DryRun and Paused too, where nobody acts on it."""
    acts: bool
    """Whether it is to be acted on: mode Active."""
    reason: str
    """The binding constraint, one of `sapwood_contract.metrics.SCALING_REASONS`."""
    message: str
    """A sentence with the numbers that decided."""
    inputs: Mapping[str, float] = field(default_factory=dict)
    """Signal (`sapwood_contract.metrics.SCALING_SIGNALS`) -> value; what is unknown is absent."""
    predicted: Mapping[int, float] = field(default_factory=dict)
    """Replicas -> hit ratio that the curve predicts, around the present number."""
    rejected: tuple[Alternative, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    state: State
    """To be remembered."""
