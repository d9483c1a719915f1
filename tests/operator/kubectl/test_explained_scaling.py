"""The autoscaler's part of `explain`, of statuses as the operator writes them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from support_scaling import NOW as UNIX
from support_scaling import reading, service, straight_curve

from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.recorded import conditions, recorded
from sapwood_operator.autoscaling.values import NoReading, Observation, State
from sapwood_operator.domain.scaling_policy import ScalingPolicy
from sapwood_operator.kubectl.explain import render_explain
from sapwood_operator.kubectl.picture import Picture

NOW = datetime.fromtimestamp(UNIX + 90, UTC)
POLICY = ScalingPolicy(max_replicas=4)
BUSY = service(*[reading(0.95, curve=straight_curve(0.5, 0.9))] * 2)
OK = {"type": "Ready", "status": "True", "reason": "AllReplicasReady", "message": "all 2 replicas are ready"}


def a_picture(seen: Observation = BUSY, policy: ScalingPolicy = POLICY, **status: Any) -> Picture:
    """A service of two ready replicas whose operator has just decided."""
    decision = decide(policy, seen, State(), UNIX)
    said = [
        {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message} for c in conditions({}, decision)
    ]
    known = {"observedGeneration": 1, "conditions": [OK, *said], "readyReplicas": 2, "replicas": 2}
    known |= {
        "desiredReplicas": decision.desired if decision.acts else 2,
        "autoscaling": recorded({}, decision),
        **status,
    }
    about = {"namespace": "team", "name": "chat", "uid": "chat", "generation": 1}
    return Picture({"metadata": about, "spec": {"autoscaling": {"maxReplicas": 4}}, "status": known})


def scaling(picture: Picture) -> str:
    """Return the part of the text, without the sections before and after it."""
    return render_explain(picture, now=NOW).partition("Scaling\n")[2].partition("\n\n")[0].rstrip("\n") + "\n"


def test_what_is_wanted_why_from_what_and_what_is_not_wanted_are_told() -> None:
    assert scaling(a_picture()) == (
        "  3 replicas wanted, 3 asked for, 2 ready\n"
        "  PrefillSpeed: prompts need more prefill speed than fewer replicas have\n"
        "    2 replicas would use 95 % of their prefill speed, planned are 80 %\n"
        "  Decided from\n"
        "    affinity                   1.00\n"
        "    arrivals per second        4\n"
        "    coverage ratio             100 %\n"
        "    hit ratio                  50 %\n"
        "    pinned kv ratio            1 %\n"
        "    prefill tokens per second  19,000\n"
        "    prompt tokens per second   38,000\n"
        "    skew ratio                 1.00\n"
        "    waiting tokens             0\n"
        "  Predicted hit ratio\n"
        "    1 replica   25 %\n"
        "    2 replicas  50 %\n"
        "    3 replicas  75 %\n"
        "  Not wanted\n"
        "    1 replica   1 replica would use 285 % of their prefill speed, planned are 80 %\n"
        "    2 replicas  2 replicas would use 95 % of their prefill speed, planned are 80 %\n"
        "  Last changes\n"
        "    90s ago  2 to 3  PrefillSpeed: 2 replicas would use 95 % of their prefill speed, planned are 80 %\n"
        "  Conditions\n"
        "    MetricsAvailable   True   Reported: 2 of 2 replicas reported\n"
        "    AutoscalingActive  True   Active: decisions are acted on\n"
        "    ScalingLimited     False  AsWanted: as many replicas as are wanted are asked for\n"
    )


def test_in_dry_run_it_says_what_it_would_do() -> None:
    text = scaling(a_picture(policy=replace(POLICY, mode="DryRun")))
    assert "3 replicas wanted, 2 asked for, 2 ready; mode DryRun: nothing is done, it would go from 2 to 3\n" in text


def test_who_leaves_is_told_with_why_from_the_event_that_chose_it() -> None:
    since = datetime.fromtimestamp(UNIX + 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    told = {
        "reason": "ReplicaChosen",
        "type": "Normal",
        "eventTime": since,
        "note": "chat-engine-b goes: 10 tokens of worth, 4 of them on no other replica",
        "metadata": {"creationTimestamp": since},
    }
    leaving = {"leaving": [{"pod": "chat-engine-b", "uid": "b", "since": since}]}
    picture = a_picture()
    status = {**picture.status, "autoscaling": leaving}
    by_hand = replace(picture, service={**picture.service, "spec": {"replicas": 1}, "status": status}, events=(told,))
    assert scaling(by_hand) == (
        "  Leaving\n"
        "    chat-engine-b  gets nothing new since 30s; why: 10 tokens of worth, 4 of them on no other replica\n"
    )
    forgotten = replace(by_hand, events=())
    assert scaling(forgotten) == "  Leaving\n    chat-engine-b  gets nothing new since 30s\n"


def test_where_too_little_is_known_it_says_so_and_shows_no_number_that_it_does_not_have() -> None:
    text = scaling(a_picture(service(NoReading("lost"), NoReading("lost"))))
    assert "MetricsMissing: too little is known to change anything" in text
    assert "coverage ratio  0 %" in text
    assert "hit ratio  " not in text


def test_without_a_policy_that_can_be_followed_nothing_old_is_told_as_if_it_were_wanted() -> None:
    missing = {"type": "AutoscalingActive", "status": "False", "reason": "PolicyMissing", "message": "no policy 'day'"}
    text = scaling(a_picture(conditions=[OK, missing]))
    assert text.startswith("  nobody decides: PolicyMissing\n")
    assert "wanted" not in text
    assert "AutoscalingActive  False  PolicyMissing: no policy 'day'" in text


def test_a_service_that_the_operator_has_not_decided_about_says_so() -> None:
    assert scaling(a_picture(autoscaling={})).startswith("  nothing has been decided yet\n")


def test_what_a_newer_operator_writes_is_shown_as_it_is() -> None:
    newer = {"desired": 2, "bound": "NewRule", "inputs": {"new_signal": "12", "newer": "many"}}
    text = scaling(a_picture(autoscaling=newer))
    assert "NewRule: a reason that this version of the plugin does not know" in text
    assert "new signal  12\n" in text
    assert "newer       many\n" in text


def test_conditions_of_scaling_are_told_once() -> None:
    text = render_explain(a_picture(), now=NOW)
    assert text.count("MetricsAvailable") == 1
