"""What engines say of themselves, for tests of how the operator reads it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from sapwood_contract.metrics import ENGINE_STATES, MRC_CAPACITIES, STEP_COSTS
from sapwood_operator.autoscaling.scrapes import Kv, Sample, Scrape, Totals

MODEL = {"model": "m"}
NOTHING = Totals(ended=0, admitted=0, prompt=0, cached=0, generated=0, evicted=0, regret=0)
IDLE = Scrape(
    at=0.0,
    state="ready",
    totals=NOTHING,
    ttft={1.0: 0.0, math.inf: 0.0},
    itl={0.1: 0.0, math.inf: 0.0},
    running=0.0,
    waiting=0.0,
    waiting_tokens=0.0,
    kv=Kv(1000.0, 0.0),
)
"""An engine that has never had a request."""


def scrape(at: float, *, totals: Totals = NOTHING, **changes: Any) -> Scrape:
    """`IDLE` with other values."""
    return replace(IDLE, at=at, totals=totals, **changes)


def counted(count: float) -> Totals:
    """An engine whose every counter is at ``count``."""
    return Totals(ended=count, admitted=count, prompt=count, cached=count, generated=count, evicted=count, regret=count)


def samples(**values: float) -> list[Sample]:
    """All samples of an idle engine; ``values``: name -> what each sample of that name has instead."""
    found = [
        *(Sample("sapwood_requests_total", {**MODEL, "finish_reason": each}, 3.0) for each in ("stop", "abort")),
        Sample("sapwood_requests_running", MODEL, 2.0),
        Sample("sapwood_requests_waiting", {**MODEL, "reason": "capacity"}, 1.0),
        Sample("sapwood_requests_waiting_tokens", MODEL, 700.0),
        Sample("sapwood_queue_time_seconds_count", MODEL, 8.0),
        *(
            Sample("sapwood_prompt_tokens_total", {**MODEL, "source": source}, tokens)
            for source, tokens in (("device", 600.0), ("compute", 400.0), ("recompute", 50.0))
        ),
        Sample("sapwood_generation_tokens_total", MODEL, 90.0),
        *(
            Sample("sapwood_evicted_tokens_total", {**MODEL, "reason": reason, "to": "dropped"}, 16.0)
            for reason in ("capacity", "flush")
        ),
        Sample("sapwood_regret_tokens_total", MODEL, 32.0),
        *(
            Sample("sapwood_time_to_first_token_seconds_bucket", {**MODEL, "cached": cached, "le": border}, count)
            for cached in ("none", "most")
            for border, count in (("0.5", 1.0), ("1.0", 3.0), ("+Inf", 4.0))
        ),
        *(
            Sample("sapwood_inter_token_latency_seconds_bucket", {**MODEL, "le": border}, count)
            for border, count in (("0.1", 80.0), ("+Inf", 90.0))
        ),
        *(Sample("sapwood_engine_state", {"state": state}, float(state == "ready")) for state in ENGINE_STATES),
        Sample("sapwood_kv_capacity_tokens", MODEL, 1600.0),
        *(
            Sample("sapwood_kv_tokens", {**MODEL, "state": state}, tokens)
            for state, tokens in (("active", 100.0), ("protected", 200.0), ("evictable", 300.0), ("free", 1000.0))
        ),
        *(Sample("sapwood_step_cost_seconds", {"part": part}, 0.001) for part in STEP_COSTS),
        *(
            Sample("sapwood_mrc_hit_ratio", {**MODEL, "capacity": capacity}, ratio)
            for capacity, ratio in zip(MRC_CAPACITIES, (0.2, 0.4, 0.5, 0.6, 0.65, 0.7), strict=True)
        ),
        Sample("sapwood_working_set_tokens", MODEL, 6000.0),
        Sample("sapwood_mrc_sample_rate", MODEL, 0.05),
        Sample("sapwood_mrc_samples_total", MODEL, 500.0),
    ]
    return [replace(each, value=values.get(each.name, each.value)) for each in found]
