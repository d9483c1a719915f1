"""Autoscaling on one machine, in virtual time: signals come from a fake, everything else is what runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support_local import IDLE, Setting, a_policy, a_service

from sapwood_contract.launch import parse
from sapwood_operator.autoscaling.values import Reading, StepCost
from sapwood_operator.local.figures import Figures
from sapwood_operator.local.kubelet import PROPAGATION_SECONDS
from sapwood_operator.local.rows import remarks, rows, scales

COST = StepCost(prefill_token=0.001, prefill_key=0.0, decode=0.001, decode_key=0.0, base=0.001)
QUIET = Reading(
    window_seconds=60.0,
    arrivals=0.0,
    prompt_tokens=0.0,
    cached_tokens=0.0,
    generation_tokens=0.0,
    running=0.0,
    waiting=0.0,
    waiting_tokens=0.0,
    capacity_tokens=100_000.0,
    pinned_tokens=0.0,
    cost=COST,
)
BUSY = replace(QUIET, arrivals=9.0, prompt_tokens=950.0, generation_tokens=1.0, running=1.0)
"""Of a replica that can prefill 1,000 tokens a second."""
TO_ZERO = {"minReplicas": 0, "maxReplicas": 2, "scaleToZero": {"enabled": True, "idleAfter": "60s"}}


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def told(setting: Setting, reason: str) -> list[str]:
    return [event.message for event in setting.events if event.reason == reason]


def running(setting: Setting, **autoscaling: Any) -> None:
    """Bring a scaled service up, and let it run for a while."""
    setting.give(a_service(autoscaling={"maxReplicas": 3, **autoscaling}))
    setting.get_ready()
    setting.asked.reading = QUIET
    setting.step(200.0)
    setting.learn()


def let_go(setting: Setting) -> None:
    """Let time pass until no replica is left of those that nobody waits for."""
    for _ in range(20):
        for process in setting.engines:
            if process.was_asked_to_end:
                process.end(0)
        setting.step(PROPAGATION_SECONDS)


def test_a_load_that_one_replica_cannot_take_starts_another_and_the_event_says_what_bound(setting: Setting) -> None:
    running(setting)
    assert len(setting.pods) == 1
    setting.asked.reading = BUSY
    setting.learn()
    assert len(setting.pods) == len(setting.engines) > 1
    assert "PrefillSpeed" in told(setting, "Scaled")[0]
    (line,) = scales(setting.platform)
    assert line.startswith(f"chat: {len(setting.pods)} replicas wanted: PrefillSpeed: ")


def test_engines_of_a_service_that_may_grow_leave_room_for_the_others(tmp_path: Path) -> None:
    setting = Setting(tmp_path, num_cores=9)
    running(setting)
    (pod,) = setting.pods
    given = parse(setting.engine(pod).arguments[1:])
    assert (given.threads, given.memory_fraction) == (3, round(0.5 / 3, 4))
    assert given.warm_wait_seconds > 0


def test_in_a_dry_run_it_is_told_what_would_be_and_nothing_is_done(setting: Setting) -> None:
    running(setting, mode="DryRun")
    setting.asked.reading = BUSY
    setting.learn()
    assert len(setting.pods) == 1
    assert "PrefillSpeed" in told(setting, "WouldScale")[0]
    assert "chat: DryRun: decisions are recorded and not acted on" in remarks(setting.platform)
    assert parse(setting.engine(setting.pods[0]).arguments[1:]).threads is None


def test_a_policy_of_the_files_decides_for_who_names_it_and_its_edit_counts_at_once(setting: Setting) -> None:
    service = a_service(autoscaling={"policyRef": {"name": "day"}})
    setting.give(service)
    assert any("PolicyMissing" in remark for remark in remarks(setting.platform))
    setting.give(service, policies=(a_policy("day", maxReplicas=4, minReplicas=2),))
    assert len(setting.pods) == 2
    assert not any("PolicyMissing" in remark for remark in remarks(setting.platform))
    setting.give(service, policies=(a_policy("day", maxReplicas=4, minReplicas=3),))
    assert len(setting.pods) == 3


def test_a_policy_of_another_namespace_decides_nothing(setting: Setting) -> None:
    other = a_policy("day", "elsewhere", maxReplicas=4, minReplicas=2)
    setting.give(a_service(autoscaling={"policyRef": {"name": "day"}}), policies=(other,))
    assert len(setting.pods) == 1
    assert setting.condition("AutoscalingActive")[:2] == ("False", "PolicyMissing")


def test_what_was_decided_outlives_an_edit_of_the_file(setting: Setting) -> None:
    running(setting, maxReplicas=2)
    setting.asked.reading = BUSY
    setting.learn()
    setting.get_ready()
    before = setting.status()["autoscaling"]["decisions"]
    setting.give(a_service(autoscaling={"maxReplicas": 5}, engine={"contextLength": 1024}))
    assert setting.status()["desiredReplicas"] >= 2
    assert setting.status()["autoscaling"]["decisions"][-1] == before[-1]


def test_a_service_that_may_go_to_zero_begins_there_and_the_gateway_holds_its_requests(setting: Setting) -> None:
    setting.give(a_service(autoscaling=TO_ZERO))
    assert setting.pods == []
    assert setting.route()["queue_max_requests"] > 0
    assert setting.condition("Serving")[:2] == ("False", "ScaledToZero")
    setting.learn()
    assert scales(setting.platform) == ["chat: 0 replicas wanted: Idle: nobody asks for anything"]


def test_a_request_that_waits_wakes_a_service_and_silence_sends_it_back_to_zero(setting: Setting) -> None:
    setting.give(a_service(autoscaling=TO_ZERO))
    setting.asked.demand = replace(IDLE, num_waiting=1)
    setting.learn()
    (pod,) = setting.pods
    assert "Demand" in told(setting, "Scaled")[0]
    setting.get_ready()
    setting.asked.demand, setting.asked.reading = replace(IDLE, num_running=1), QUIET
    setting.step(100.0)
    setting.learn()
    assert [each.is_leaving for each in setting.pods] == [False]
    setting.asked.demand = replace(IDLE, idle_seconds=61.0)
    setting.learn()
    setting.step(1.0)
    assert setting.route()["cordoned"] == [pod.name]
    assert [row.state for row in rows(setting.platform, Figures(), setting.now)] == ["draining"]
    let_go(setting)
    assert setting.pods == []
    assert "Idle" in told(setting, "Scaled")[-1]
    setting.asked.demand = replace(IDLE, num_waiting=1)
    setting.learn()
    assert len(setting.engines) == 1


def test_all_that_waited_leave_before_the_replica_is_ready_and_it_goes_again(setting: Setting) -> None:
    setting.give(a_service(autoscaling=TO_ZERO))
    setting.asked.demand = replace(IDLE, num_waiting=3)
    setting.learn()
    setting.asked.demand = replace(IDLE, idle_seconds=60.0)
    setting.learn()
    let_go(setting)
    assert setting.pods == []
    assert "DemandGone" in told(setting, "Scaled")[-1]


def test_unknown_is_not_idle(setting: Setting) -> None:
    running(setting, minReplicas=2)
    setting.asked.reading = replace(QUIET, prompt_tokens=float("nan"))
    setting.learn()
    assert len([pod for pod in setting.pods if not pod.is_leaving]) == 2


def test_a_service_that_is_gone_from_the_files_is_forgotten(setting: Setting) -> None:
    running(setting)
    setting.give()
    assert list(setting.platform.watched()) == []
    assert setting.asked.forgotten == ["default/chat"]
