"""The figures that rules are made of, where a wrong one would look like a right one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support_scaling import (
    CAPACITY,
    FLAT,
    NOW,
    curve_of,
    latencies,
    reading,
    replica,
    service,
    straight_curve,
)

from sapwood_operator.autoscaling.capacity import Capacity
from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.hits import Hits, Weighed, hits_of
from sapwood_operator.autoscaling.load import hear, load_of
from sapwood_operator.autoscaling.situation import situation_of
from sapwood_operator.autoscaling.stabilise import learnt, tried, within_steps
from sapwood_operator.autoscaling.values import Change, Observation, State
from sapwood_operator.domain.scaling_policy import Behavior, ScalingPolicy, StepLimit

POLICY = ScalingPolicy(max_replicas=16)


def capacity(observation: Observation) -> Capacity:
    """Return what is reckoned from what is seen, long after any change."""
    return situation_of(POLICY, observation, State(), NOW).capacity


# --- steps and what is learnt of them


def test_a_limit_that_allows_more_than_is_wanted_gives_no_more() -> None:
    four = Behavior(window_seconds=0.0, limits=(StepLimit(type="Replicas", value=4, period_seconds=60.0),))
    assert within_steps(four, 2, 3, changes=(), now=NOW) == 3
    assert within_steps(four, 8, 7, changes=(), now=NOW) == 7


def test_only_a_step_up_says_that_a_number_was_too_few() -> None:
    found = capacity(service(reading(0.5), reading(0.5)))

    def learns(before: int, wish: int) -> bool:
        fell = Change(NOW - 60.0, before + 1, before, "LoadFell", "")
        return learnt(State(desired=before, changes=(fell,)), found, wish, "PromisedLatency", NOW) is not None

    assert learns(2, 3)
    assert not learns(2, 2)
    assert not learns(0, 1)


def test_what_the_last_one_has_to_do_alone_is_remembered_too() -> None:
    found = capacity(service(reading(0.2), reading(0.2)))
    assert tried(State(desired=2), found, 1, "LoadFell") is not None
    assert tried(State(desired=1, tried_tokens=7), found, 0, "LoadFell") == 7
    assert tried(State(desired=2, tried_tokens=7), found, 2, "LoadFell") == 7
    assert tried(State(desired=2, tried_tokens=7), found, 1, "Maximum") == 7


# --- sums


@pytest.mark.parametrize(("running", "context"), [(0.5, 1000.0), (1.0, 1000.0), (4.0, 250.0)])
def test_what_one_decode_reads_is_what_one_request_holds_and_never_more_than_all_hold(
    running: float, context: float
) -> None:
    seen = service(reading(0.3, running=running, pinned_tokens=1000.0))
    assert load_of(hear(seen), seen.demand).mean_context_tokens == context


def test_without_a_running_request_a_decode_reads_a_mean_prompt() -> None:
    seen = service(reading(0.3, running=0.0))
    assert load_of(hear(seen), seen.demand).mean_context_tokens == 3000.0


# --- caches


def test_requests_that_go_anywhere_hit_with_the_present_number_what_the_curve_says() -> None:
    weighed = Weighed(curve_of([(CAPACITY, 0.25), (4 * CAPACITY, 0.5)], 0.5), 1.0, CAPACITY)
    found = Hits(curves=(weighed, weighed), num_measured=2, affinity=0.0, measured=0.0)
    assert found.at(2) == pytest.approx(0.25)
    assert found.at(1) > 0.25 > found.at(4)


def test_a_replica_that_had_no_prompts_has_no_curve() -> None:
    idle = reading(0.0, curve=FLAT)
    heard = hear(service(idle))
    assert not hits_of(heard, num_measured=1, measured=None, affinity=1.0, settle_seconds=120.0).has_curve


def test_a_newcomer_that_takes_requests_is_among_those_that_were_measured() -> None:
    told = reading(cached_tokens=4000.0, curve=straight_curve(0.2, 0.8))
    found = capacity(service(told, others=[replica(1, told, age=30.0)])).hits
    assert [found.at(1), found.at(2)] == pytest.approx([0.2, 0.4])


# --- what is told


def test_a_decision_tells_what_it_was_made_from_in_shares_of_what_there_is() -> None:
    seen = service(*[reading(0.3, pinned_tokens=0.4 * CAPACITY, curve=FLAT)] * 2)
    inputs = decide(POLICY, seen, State(), NOW).inputs
    assert inputs["pinned_kv_ratio"] == pytest.approx(0.4)
    assert inputs["coverage_ratio"] == 1.0
    assert inputs["skew_ratio"] == 1.0
    unknown = decide(POLICY, service(reading(0.3, capacity_tokens=0.0)), State(), NOW).inputs
    assert "pinned_kv_ratio" not in unknown


def test_what_is_predicted_begins_with_one_replica_and_ends_with_one_more() -> None:
    assert set(decide(POLICY, service(reading(0.3, curve=FLAT)), State(), NOW).predicted) == {1, 2}
    assert set(decide(POLICY, service(*[reading(0.3, curve=FLAT)] * 3), State(), NOW).predicted) == {2, 3, 4}


def test_numbers_beside_the_decision_are_rejected_each_for_its_own_reason() -> None:
    policy = replace(POLICY, min_replicas=2, max_replicas=2)
    decision = decide(policy, service(*[reading(0.3, curve=FLAT)] * 2), State(), NOW)
    assert [(each.replicas, each.why) for each in decision.rejected] == [
        (1, "minReplicas is 2"),
        (3, "maxReplicas is 2"),
    ]
    enough = decide(POLICY, service(reading(0.3, curve=FLAT)), State(), NOW).rejected
    assert enough[-1].why == "1 replica would suffice: 30 % of their prefill speed"


@pytest.mark.parametrize(
    ("ttft", "itl", "sentence"),
    [
        (0.1, None, "slo.ttftP90 is 100 ms, and a request alone takes 160 ms"),
        (None, 0.01, "slo.itlP90 is 10 ms, and a request alone takes 11 ms"),
        (1.0, 0.5, ""),
    ],
)
def test_a_promise_that_no_number_of_replicas_keeps_is_told(
    ttft: float | None, itl: float | None, sentence: str
) -> None:
    policy = replace(POLICY, ttft_p90_seconds=ttft, itl_p90_seconds=itl)
    told = decide(policy, service(reading(0.3, curve=FLAT)), State(), NOW).verdicts
    (limited,) = [each for each in told if each.type == "ScalingLimited"]
    assert (limited.status, limited.reason) == ((True, "PromiseOutOfReach") if sentence else (False, "AsWanted"))
    assert limited.message.startswith(sentence)


def test_a_promise_of_just_what_a_request_alone_takes_asks_for_nothing() -> None:
    slow = reading(0.3, ttft=latencies(0.9), curve=FLAT)
    alone = capacity(service(slow, slow)).at(1).alone_seconds
    decision = decide(replace(POLICY, ttft_p90_seconds=alone), service(slow, slow), State(), NOW)
    assert (decision.desired, decision.reason) == (2, "Stabilizing")
