"""The autoscaler's part of ``kubectl sapwood explain``: what is wanted, why, from what, and who goes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sapwood_operator.autoscaling.explain import RULES, percent, replicas_text, seconds_text
from sapwood_operator.domain.intent import DRY_RUN, SCALING_CONDITIONS
from sapwood_operator.kubectl.picture import JsonObject, Picture
from sapwood_operator.kubectl.text import age, columns

_DECIDING = ("Active", DRY_RUN, "Paused")
"""Reasons of `AutoscalingActive` while a policy is followed."""
_GONE = "ReplicaChosen"
"""Reason of the events that say why a replica goes."""


def render_scaling(picture: Picture, *, now: datetime) -> list[str]:
    """Return the lines; none for a service of a fixed number of which nobody leaves."""
    status = picture.status.get("autoscaling") or {}
    lines = _leaving(picture, status, now)
    if picture.section("autoscaling"):
        lines = [*_decided(picture, status), *lines, *_changes(status, now), *_conditions(picture)]
    return ["Scaling", *(f"  {line}" for line in lines)] if lines else []


def _decided(picture: Picture, status: JsonObject) -> list[str]:
    """What was decided last, and all that explains it; nothing of it where nobody decides any more."""
    active = picture.condition("AutoscalingActive")
    if active["reason"] not in _DECIDING:
        return [f"nobody decides: {active['reason']}"]
    if "desired" not in status:
        return ["nothing has been decided yet"]
    return [*_decision(picture, status), *_inputs(status), *_predicted(status), *_rejected(status)]


def _decision(picture: Picture, status: JsonObject) -> list[str]:
    wanted, bound = status["desired"], str(status.get("bound", ""))
    asked = picture.status.get("desiredReplicas", wanted)
    lines = [f"{replicas_text(wanted)} wanted, {asked} asked for, {picture.status.get('readyReplicas', 0)} ready"]
    if picture.condition("AutoscalingActive")["reason"] == DRY_RUN:
        would = "the number would stay" if wanted == asked else f"it would go from {asked} to {wanted}"
        lines = [f"{lines[0]}; mode DryRun: nothing is done, {would}"]
    if bound:
        lines.append(f"{bound}: {RULES.get(bound, 'a reason that this version of the plugin does not know')}")
    if message := status.get("message"):
        lines.append(f"  {message}")
    return lines


def _inputs(status: JsonObject) -> list[str]:
    rows = [(name.replace("_", " "), _value(name, value)) for name, value in (status.get("inputs") or {}).items()]
    return ["Decided from", *columns(rows, indent="  ")] if rows else []


def _value(name: str, text: str) -> str:
    """Write a signal in the unit that ends its name; the text itself where it is no number."""
    try:
        number = float(text)
    except ValueError:
        return text
    if name in ("skew_ratio", "affinity"):
        return f"{number:.2f}"
    if name.endswith("_ratio"):
        return percent(number)
    if name.endswith("p90_seconds"):
        return seconds_text(number)
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def _predicted(status: JsonObject) -> list[str]:
    predicted: Mapping[str, str] = status.get("predicted") or {}
    rows = [(replicas_text(int(each)), percent(float(predicted[each]))) for each in sorted(predicted, key=int)]
    return ["Predicted hit ratio", *columns(rows, indent="  ")] if rows else []


def _rejected(status: JsonObject) -> list[str]:
    rows = [(replicas_text(each["replicas"]), str(each["why"])) for each in status.get("rejected") or ()]
    return ["Not wanted", *columns(rows, indent="  ")] if rows else []


def _leaving(picture: Picture, status: JsonObject, now: datetime) -> list[str]:
    rows = [
        (str(each["pod"]), f"gets nothing new since {age(each['since'], now)}{_why(picture, each['pod'])}")
        for each in status.get("leaving") or ()
    ]
    return ["Leaving", *columns(rows, indent="  ")] if rows else []


def _why(picture: Picture, pod: str) -> str:
    """What the last event that chose the pod says of it; the cluster forgets events after a while."""
    notes = [str(each.get("note") or "") for each in sorted(picture.events, key=_at) if each["reason"] == _GONE]
    beginning = f"{pod} goes: "
    found = [note.removeprefix(beginning) for note in notes if note.startswith(beginning)]
    return f"; why: {found[-1]}" if found else ""


def _at(event: JsonObject) -> str:
    return str(event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def _changes(status: JsonObject, now: datetime) -> list[str]:
    rows = [
        (f"{age(each['time'], now)} ago", f"{each['from']} to {each['to']}", f"{each['reason']}: {_text(each)}")
        for each in status.get("decisions") or ()
    ]
    return ["Last changes", *columns(rows, indent="  ")] if rows else []


def _text(change: Mapping[str, Any]) -> str:
    return str(change.get("message") or "")


def _conditions(picture: Picture) -> list[str]:
    rows = [
        (each["type"], each["status"], f"{each['reason']}: {each['message']}")
        for each in picture.conditions()
        if each["type"] in SCALING_CONDITIONS
    ]
    return ["Conditions", *columns(rows, indent="  ")] if rows else []
