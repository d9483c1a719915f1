"""One pod's series at one time, checked and sorted into what readings are made of. Pure.

The same values come from an engine's ``/metrics`` and from Prometheus. A scrape in which a number is missing, is none
or makes no sense is no scrape at all: nothing of it is taken for 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast, get_args

from sapwood_contract.curve import Curve, CurvePoint
from sapwood_contract.http import EngineState
from sapwood_contract.metrics import ENGINE_STATES, MRC_CAPACITIES, STEP_COSTS
from sapwood_operator.autoscaling.values import StepCost

_ENDED = "sapwood_requests_total"
_RUNNING, _WAITING = "sapwood_requests_running", "sapwood_requests_waiting"
_WAITING_TOKENS = "sapwood_requests_waiting_tokens"
_ADMITTED = "sapwood_queue_time_seconds_count"
_PROMPT = "sapwood_prompt_tokens_total"
_GENERATED = "sapwood_generation_tokens_total"
_EVICTED, _REGRET = "sapwood_evicted_tokens_total", "sapwood_regret_tokens_total"
_TTFT, _ITL = "sapwood_time_to_first_token_seconds_bucket", "sapwood_inter_token_latency_seconds_bucket"
_STATE = "sapwood_engine_state"
_CAPACITY, _KV = "sapwood_kv_capacity_tokens", "sapwood_kv_tokens"
_COST = "sapwood_step_cost_seconds"
_DECODE_PARTS = ("decode", "decode_key")
_PREFILL_DRAWS = 1.5
"""Tokens an answer; with more of them on the average every other answer decodes, and its cost is soon known."""
_CURVE, _WORKING_SET = "sapwood_mrc_hit_ratio", "sapwood_working_set_tokens"
_SAMPLE_RATE, _SAMPLES = "sapwood_mrc_sample_rate", "sapwood_mrc_samples_total"

ALWAYS_THERE = frozenset(
    (
        *(_ENDED, _RUNNING, _WAITING, _WAITING_TOKENS, _ADMITTED, _PROMPT, _GENERATED, _EVICTED, _REGRET),
        *(_TTFT, _ITL, _STATE, _SAMPLE_RATE, _SAMPLES),
    )
)
"""What any engine says from its first scrape on."""
_MAY_BE_UNKNOWN = frozenset((_COST, _CURVE, _WORKING_SET))
"""NaN among these means that too little was seen yet."""
NAMES = ALWAYS_THERE | _MAY_BE_UNKNOWN | {_CAPACITY, _KV}
"""Names of all samples that are looked at."""
_MOST = 2.0**63
"""No counter of ours gets there; sums of such numbers stay finite."""
_COMPUTED, _RECOMPUTED = "compute", "recompute"

Buckets = Mapping[float, float]
"""Upper border in seconds -> observations since the engine began between the former border and this one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One series' value."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What an engine has counted since it began."""

    ended: float
    """Requests."""
    admitted: float
    """Requests."""
    prompt: float
    """Tokens, as all that follow; what a preemption had computed again is not among them."""
    cached: float
    generated: float
    evicted: float
    """For want of room."""
    regret: float


@dataclass(frozen=True, slots=True)
class Kv:
    """KV memory, in tokens."""

    capacity: float
    pinned: float
    """In use by running requests."""


@dataclass(frozen=True, slots=True)
class NoKv:
    """The engine has not said yet how much it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """What one pod said at one time."""

    at: float
    """Unix time."""
    state: EngineState
    totals: Totals
    ttft: Buckets
    itl: Buckets
    running: float
    waiting: float
    waiting_tokens: float
    kv: Kv | NoKv
    cost: StepCost | None = None
    """None: not all of its parts are known."""
    curve: Curve | None = None


@dataclass(frozen=True, slots=True)
class NoScrape:
    """A pod did not answer, or with something that cannot be used; ``why`` is for people."""

    why: str


def read_scrape(at: float, samples: Iterable[Sample]) -> Scrape | NoScrape:
    """Sort what a pod said at ``at`` (Unix time); samples of other names than `NAMES` are passed over."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.name not in NAMES:
            continue
        if _is_number(sample):
            by_name.setdefault(sample.name, []).append(sample)
        elif sample.name not in _MAY_BE_UNKNOWN:
            return NoScrape(f"it says that {sample.name} is {sample.value}")
    missing = ALWAYS_THERE - by_name.keys()
    if missing:
        return NoScrape(f"it does not say {min(missing)}: is it a Sapwood engine of this version?")
    try:
        return _sorted(at, by_name)
    except KeyError as error:
        return NoScrape(f"a series lacks the label {error.args[0]}")
    except ValueError as error:
        return NoScrape(str(error))


def _is_number(sample: Sample) -> bool:
    most = math.inf if sample.name == _WORKING_SET else _MOST
    return 0 <= sample.value <= most


def _sorted(at: float, by_name: Mapping[str, Sequence[Sample]]) -> Scrape:
    """Raises KeyError for a missing label and ValueError for one that makes no sense."""
    totals = _totals(by_name)
    return Scrape(
        at=at,
        state=_state(by_name[_STATE]),
        totals=totals,
        ttft=_buckets(by_name[_TTFT]),
        itl=_buckets(by_name[_ITL]),
        running=_sum(by_name[_RUNNING]),
        waiting=_sum(by_name[_WAITING]),
        waiting_tokens=_sum(by_name[_WAITING_TOKENS]),
        kv=_kv(by_name),
        cost=_cost(by_name.get(_COST, ()), totals),
        curve=_curve(by_name),
    )


def _totals(by_name: Mapping[str, Sequence[Sample]]) -> Totals:
    prompts = _by_label(by_name[_PROMPT], "source")
    cached = sum(tokens for source, tokens in prompts.items() if source not in (_COMPUTED, _RECOMPUTED))
    return Totals(
        ended=_sum(by_name[_ENDED]),
        admitted=_sum(by_name[_ADMITTED]),
        prompt=cached + prompts.get(_COMPUTED, 0.0),
        cached=cached,
        generated=_sum(by_name[_GENERATED]),
        evicted=_by_label(by_name[_EVICTED], "reason").get("capacity", 0.0),
        regret=_sum(by_name[_REGRET]),
    )


def _sum(samples: Iterable[Sample]) -> float:
    return sum(sample.value for sample in samples)


def _by_label(samples: Iterable[Sample], label: str) -> dict[str, float]:
    """Return label value -> sum."""
    sums: dict[str, float] = {}
    for sample in samples:
        value = sample.labels[label]
        sums[value] = sums.get(value, 0.0) + sample.value
    return sums


def _state(samples: Sequence[Sample]) -> EngineState:
    states = [state for state, is_it in _by_label(samples, "state").items() if is_it]
    if len(states) != 1 or states[0] not in ENGINE_STATES:
        raise ValueError(f"it is in {len(states)} states, of {', '.join(get_args(EngineState))} it has to be in one")
    return cast(EngineState, states[0])


def _buckets(samples: Iterable[Sample]) -> Buckets:
    """Return what lies between the borders; in the exposition each bucket has all below it too."""
    below = sorted((float(border), num) for border, num in _by_label(samples, "le").items())
    counts = {border: num - former for (border, num), former in zip(below, _former(below), strict=True)}
    if any(math.isnan(border) or count < 0 for border, count in counts.items()) or math.inf not in counts:
        raise ValueError("the buckets of a histogram do not rise to an infinite one")
    return counts


def _former(below: Sequence[tuple[float, float]]) -> Iterator[float]:
    yield 0.0
    yield from (num for _, num in below[:-1])


def _kv(by_name: Mapping[str, Sequence[Sample]]) -> Kv | NoKv:
    if _CAPACITY not in by_name or _KV not in by_name:
        return NoKv()
    states = _by_label(by_name[_KV], "state")
    capacity = _sum(by_name[_CAPACITY])
    return Kv(capacity, states["active"] + states["protected"]) if capacity else NoKv()


def _cost(samples: Iterable[Sample], totals: Totals) -> StepCost | None:
    """Return what a step costs. Answers of one token, which the prefill draws, never show what decoding costs: where
    hardly anything else was answered it counts as nothing, as there is nothing that it would be reckoned for.
    """
    unseen = dict.fromkeys(_DECODE_PARTS, 0.0) if totals.generated <= _PREFILL_DRAWS * totals.admitted else {}
    parts = unseen | _by_label(samples, "part")
    return StepCost(**{part: parts[part] for part in STEP_COSTS}) if parts.keys() >= set(STEP_COSTS) else None


def _curve(by_name: Mapping[str, Sequence[Sample]]) -> Curve | None:
    """Return the curve through the points that are exported; None where one of them is unknown."""
    ratios = {sample.labels["capacity"]: sample.value for sample in by_name.get(_CURVE, ())}
    capacity = _sum(by_name.get(_CAPACITY, ()))
    if not capacity or not ratios.keys() >= set(MRC_CAPACITIES):
        return None
    multiples = {name: float(name.removesuffix("x")) for name in MRC_CAPACITIES}
    points = [
        CurvePoint(None if multiple == math.inf else multiple * capacity, min(1.0, ratios[name]))
        for name, multiple in multiples.items()
    ]
    return Curve(
        enabled=True,
        sample_rate=_sum(by_name[_SAMPLE_RATE]),
        num_samples=round(_sum(by_name[_SAMPLES])),
        capacity_tokens=round(capacity),
        points=tuple(points),
        working_set_tokens=_sum(by_name[_WORKING_SET]) if _WORKING_SET in by_name else math.nan,
        regret_tokens=round(_sum(by_name[_REGRET])),
    )
