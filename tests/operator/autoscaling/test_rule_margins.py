"""How far each rule reaches: what is just within it beside what is just outside."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from support_scaling import (
    CAPACITY,
    COST,
    ENOUGH,
    FLAT,
    IDLE,
    NOW,
    latencies,
    reading,
    replica,
    service,
    straight_curve,
)

from sapwood_operator.autoscaling.capacity import Bound, Capacity
from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.load import Load, hear, load_of
from sapwood_operator.autoscaling.situation import situation_of
from sapwood_operator.autoscaling.values import Change, Demand, Observation, Reading, Replica, State
from sapwood_operator.domain.scaling_policy import ScalingPolicy

POLICY = ScalingPolicy(max_replicas=16)
PROMISED = replace(POLICY, ttft_p90_seconds=1.0)


def capacity(told: Reading, policy: ScalingPolicy) -> Capacity:
    """Return what is foretold of a service of one replica, long after any change."""
    return situation_of(policy, service(told, by_prefix=False), State(), NOW).capacity


@pytest.mark.parametrize(
    ("told", "policy", "bound"),
    [
        (reading(0.7), POLICY, "PrefillSpeed"),
        (reading(0.47), PROMISED, "TimeToFirstToken"),
        (reading(0.5, waiting=9.0, waiting_tokens=275_000.0), POLICY, "TimeToFirstToken"),
        (reading(0.1, pinned_tokens=0.8 * CAPACITY), POLICY, "KvMemory"),
        (reading(0.1, generation_tokens=320.0), replace(POLICY, itl_p90_seconds=0.02), "DecodeSpeed"),
    ],
    ids=["prefill", "wait for the first token", "backlog", "KV memory", "time between tokens"],
)
def test_a_margin_makes_every_bound_narrower(told: Reading, policy: ScalingPolicy, bound: Bound) -> None:
    found = capacity(told, policy)
    assert (found.breaks(1), found.breaks(1, 0.85)) == (None, bound)


def alike(number: int, share: float, seconds: float) -> Observation:
    """Replicas that use so much of their prefill speed, and whose first tokens take so long."""
    return service(*[reading(share, ttft=latencies(seconds), curve=FLAT)] * number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A situation, and what comes of it."""

    sentence: str
    policy: ScalingPolicy = PROMISED
    seen: Observation
    state: State = ENOUGH
    desired: int
    reason: str


PROMISES = [
    Case(
        sentence="what is waited now keeps a replica though one fewer would add little",
        seen=alike(8, 0.3, 0.5),
        desired=8,
        reason="PromisedLatency",
    ),
    Case(
        sentence="a little less that is waited now keeps none",
        seen=alike(8, 0.3, 0.48),
        desired=7,
        reason="LoadFell",
    ),
    Case(
        sentence="what one fewer would add keeps a replica though little is waited now",
        seen=alike(3, 0.25, 0.38),
        desired=3,
        reason="PromisedLatency",
    ),
    Case(
        sentence="a little less to be added keeps none",
        seen=alike(3, 0.25, 0.34),
        desired=2,
        reason="LoadFell",
    ),
    Case(
        sentence="a model that says too much is not corrected, for what it says is what one fewer risks",
        seen=alike(5, 0.5, 0.4),
        desired=5,
        reason="PromisedLatency",
    ),
    Case(
        sentence="a latency that the model says too little of asks for a replica",
        seen=alike(3, 0.23, 0.7),
        desired=4,
        reason="PromisedLatency",
    ),
    Case(
        sentence="one that a replica would shorten by little has to last before it does",
        seen=alike(3, 0.21, 0.7),
        desired=3,
        reason="Stabilizing",
    ),
    Case(
        sentence="no latency asks for one where a model that is wrong fourfold sees nothing to gain",
        seen=alike(3, 0.2, 0.9),
        desired=3,
        reason="PromisedLatency",
    ),
]


def of_change(ago: float) -> State:
    """A state in which one more was decided so long ago."""
    return State(desired=2, changes=(Change(NOW - ago, 1, 2, "PrefillSpeed", ""),))


def one_got_ready(ago: float) -> Observation:
    """Two replicas whose users wait too long, and one of which got ready so long ago."""
    slow = reading(0.45, ttft=latencies(0.8), curve=FLAT)
    return service(slow, others=[replica(1, slow, age=ago)])


RESTS = [
    Case(
        sentence="latencies of both numbers of replicas ask for nothing after a change",
        seen=one_got_ready(5000.0),
        state=of_change(89.0),
        desired=2,
        reason="PrefillSpeed",
    ),
    Case(
        sentence="once the change is past they do",
        seen=one_got_ready(5000.0),
        state=of_change(91.0),
        desired=3,
        reason="PromisedLatency",
    ),
    Case(
        sentence="nor do they while a replica has been ready for no longer than they look back",
        seen=one_got_ready(89.0),
        state=of_change(600.0),
        desired=2,
        reason="PrefillSpeed",
    ),
    Case(
        sentence="once it has been ready for longer they do",
        seen=one_got_ready(91.0),
        state=of_change(600.0),
        desired=3,
        reason="PromisedLatency",
    ),
]


def sharing(sentence: str, *, pays: float, loses: float = 1.0, by_prefix: bool = True) -> Case:
    """Two replicas, the second of which saves a quarter of a replica's work and of all misses, as a third would."""
    seen = service(*[reading(0.2, curve=straight_curve(0.5, 0.9))] * 2, by_prefix=by_prefix)
    policy = replace(POLICY, min_payback=pays, max_hit_loss=loses)
    return Case(sentence=sentence, policy=policy, seen=seen, desired=2, reason="CacheGain")


CACHES = [
    replace(sharing("a cache that pays is added", pays=0.24), desired=3),
    sharing("one that does not quite pay is not, and none goes that nearly does", pays=0.26),
    sharing("a cache that saves seven tenths of what pays stays", pays=0.35),
    replace(sharing("one that saves less goes", pays=0.36), desired=1, reason="LoadFell"),
    replace(
        sharing("caches save nothing for requests that go anywhere", pays=0.35, by_prefix=False),
        desired=1,
        reason="LoadFell",
    ),
    sharing("a loss of hits that is allowed keeps nothing by itself", pays=0.26, loses=0.26),
    replace(sharing("a larger one does", pays=0.26, loses=0.24), reason="HitLoss"),
    replace(
        sharing("where any saving pays a cache that saves anything stays, and none comes that saves nothing", pays=0.0),
        seen=service(*[reading(0.2, curve=straight_curve(0.5, 0.5))] * 2),
    ),
]


def with_requests(*counts: float) -> Observation:
    """Replicas that have so many requests each, and little to compute for them."""
    return service(*[reading(0.15, running=count, curve=FLAT) for count in counts])


SKEWS = [
    Case(
        sentence="a small service is never called uneven, for few requests fall as they may",
        seen=with_requests(3.0, 0.0),
        desired=1,
        reason="LoadFell",
    ),
    Case(
        sentence="three deviations from the mean are chance",
        seen=with_requests(33.0, 7.0),
        desired=1,
        reason="LoadFell",
    ),
    Case(
        sentence="more than that is not",
        seen=with_requests(34.0, 6.0),
        desired=2,
        reason="RoutingSkew",
    ),
    Case(
        sentence="nor is anything called so where nobody idles",
        seen=with_requests(60.0, 60.0, 21.0, 21.0, 21.0),
        desired=4,
        reason="LoadFell",
    ),
    Case(
        sentence="nor where nobody has half as much again as the mean",
        seen=with_requests(59.0, 59.0, 1.0, 59.0, 59.0),
        desired=4,
        reason="LoadFell",
    ),
    Case(
        sentence="requests that wait at a replica are its own too",
        seen=service(*[reading(0.15, running=1.0, waiting=count, curve=FLAT) for count in (40.0, 0.0)]),
        desired=2,
        reason="RoutingSkew",
    ),
    Case(
        sentence="a replica that got ready just now idles because of that",
        seen=service(
            *[reading(0.15, running=count, curve=FLAT) for count in (20.0, 20.0)],
            others=[replica(9, reading(0.15, running=0.0, curve=FLAT), age=89.0)],
        ),
        desired=2,
        reason="LoadFell",
    ),
]

QUIET = replace(POLICY, min_replicas=0, scale_to_zero=True, idle_seconds=0.0)
ZEROS = [
    Case(
        sentence="a service that may go at once goes as soon as every gateway says so",
        policy=QUIET,
        seen=service(IDLE, demand=Demand(num_waiting=0, num_running=0, idle_seconds=0.0)),
        desired=0,
        reason="Idle",
    ),
    Case(
        sentence="a gateway that says nothing may have requests for it",
        policy=QUIET,
        seen=service(IDLE, demand=Demand(num_waiting=0, num_running=0, idle_seconds=0.0, is_whole=False)),
        desired=1,
        reason="Minimum",
    ),
]

CASES = [*PROMISES, *RESTS, *CACHES, *SKEWS, *ZEROS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sentence)
def test_where_a_rule_ends(case: Case) -> None:
    decision = decide(case.policy, case.seen, case.state, NOW)
    assert (decision.desired, decision.reason) == (case.desired, case.reason), decision.message


def load(*replicas: Replica) -> Load:
    """Return what they come to together."""
    seen = service(others=replicas)
    return load_of(hear(seen), seen.demand)


def test_what_leaving_replicas_say_of_requests_counts_as_what_others_say() -> None:
    stays = replica(0, reading(0.5, cost=None, ttft=latencies(0.1, 50.0), itl=latencies(0.01, 50.0)))
    leaves = replica(
        1,
        reading(
            0.25,
            arrivals=0.5,
            cached_tokens=0.0,
            evicted_tokens=300.0,
            ttft=latencies(2.0, 50.0),
            itl=latencies(0.2, 50.0),
        ),
        stage="leaving",
    )
    found = load(stays, leaves)
    assert found.hit_ratio == pytest.approx(5_000 / 15_000)
    assert found.mean_prompt_tokens == pytest.approx(15_000 / 2.5)
    assert found.evicted_tokens == 300.0
    assert found.cost == COST
    assert found.ttft_p90_seconds == pytest.approx(2.0, rel=0.05)
    assert found.itl_p90_seconds == pytest.approx(0.2, rel=0.05)
