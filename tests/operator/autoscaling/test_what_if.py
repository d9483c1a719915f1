"""What another number of replicas, or more memory, would do."""

from __future__ import annotations

import pytest
from support_scaling import CAPACITY, NOW, flat_curve, reading, service, straight_curve

from sapwood_operator.autoscaling.values import NoReading, Observation, State
from sapwood_operator.autoscaling.what_if import NoPrediction, Prediction, what_if
from sapwood_operator.domain.scaling_policy import ScalingPolicy

POLICY = ScalingPolicy(max_replicas=8, ttft_p90_seconds=1.0)
TWO = service(*[reading(0.4, pinned_tokens=0.4 * CAPACITY, curve=straight_curve(0.5, 0.9))] * 2)


def predicted(observation: Observation = TWO, *, replicas: int, memory_factor: float = 1.0) -> Prediction:
    """Return what is predicted; something has to be."""
    found = what_if(POLICY, observation, State(), NOW, replicas=replicas, memory_factor=memory_factor)
    assert isinstance(found, Prediction)
    return found


def test_as_many_as_now_do_what_they_do_now() -> None:
    same = predicted(replicas=2)
    assert (same.hit_ratio, same.prefill_use, same.kv_use) == pytest.approx((0.5, 0.4, 0.4))
    assert same.breaks is None
    assert same.sentence == "2 replicas would suffice: 40 % of their prefill speed"


def test_fewer_replicas_hit_less_compute_more_and_pin_more() -> None:
    one = predicted(replicas=1)
    assert (one.hit_ratio, one.prefill_use) == pytest.approx((0.25, 1.2))
    assert one.kv_use is not None
    assert one.kv_use >= 2 * 0.4
    assert one.breaks == "PrefillSpeed"
    assert one.sentence == "1 replica would use 120 % of their prefill speed, planned are 80 %"


def test_twice_the_memory_hits_what_twice_the_replicas_would() -> None:
    large, many = predicted(replicas=2, memory_factor=1.6), predicted(replicas=3, memory_factor=3.2 / 3)
    assert large.hit_ratio == pytest.approx(many.hit_ratio) == pytest.approx(0.8)
    assert large.kv_use == pytest.approx(0.25)


def test_half_the_memory_may_be_too_little_for_what_runs() -> None:
    told = reading(0.2, pinned_tokens=0.6 * CAPACITY, curve=flat_curve())
    assert predicted(service(told), replicas=1, memory_factor=0.5).breaks == "KvMemory"


def test_where_the_cost_of_prompts_is_unknown_it_does_not_say_that_they_suffice() -> None:
    unknown = predicted(service(reading(0.4, cost=None)), replicas=2)
    assert (unknown.breaks, unknown.prefill_use) == (None, None)
    assert unknown.sentence == "2 replicas may suffice: what a prompt costs has not been measured yet"


def test_without_a_curve_it_says_that_the_hit_ratio_is_the_least() -> None:
    assert not predicted(service(reading(0.4)), replicas=1).from_curve
    assert predicted(replicas=1).from_curve


@pytest.mark.parametrize("seen", [service(), service(NoReading("lost"), reading(0.5))])
def test_where_too_little_is_known_nothing_is_predicted(seen: Observation) -> None:
    found = what_if(POLICY, seen, State(), NOW, replicas=2)
    assert isinstance(found, NoPrediction)
    assert found.why
