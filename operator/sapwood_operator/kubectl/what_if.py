"""``kubectl sapwood what-if``: what another number of replicas, or more memory, would do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sapwood_operator.autoscaling.explain import percent, replicas_text, seconds_text
from sapwood_operator.kubectl.picture import JsonObject
from sapwood_operator.kubectl.text import columns

_UNKNOWN = "?"


def render_what_if(name: str, answer: JsonObject) -> str:
    """Return the text; ``answer``: of the operator (`autoscaling.outlook.Outlook`)."""
    now, then, policy = answer["now"], answer["then"], answer["policy"]
    rows = [("", _headline(now), _headline(then))]
    rows += [(label, show(now), show(then)) for label, show in _ROWS]
    unbroken = "none that is known" if then["prefill_use"] is None else "none"
    verdict = [("first to break", then["breaks"] or unbroken), ("the policy goes there", policy["sentence"])]
    return "\n".join([name, "", *columns(rows, indent="  "), "", f"{then['sentence']}.", "", *columns(verdict)]) + "\n"


def _headline(prediction: JsonObject) -> str:
    factor = prediction["memory_factor"]
    return replicas_text(prediction["replicas"]) + ("" if factor == 1 else f", {factor:g}x memory")


def _hits(prediction: JsonObject) -> str:
    ratio = percent(_number(prediction["hit_ratio"]))
    return ratio if prediction["from_curve"] else f"at least {ratio}"


def _share(field: str) -> Callable[[JsonObject], str]:
    return lambda prediction: _or_unknown(prediction[field], percent)


def _seconds(field: str) -> Callable[[JsonObject], str]:
    return lambda prediction: _or_unknown(prediction[field], seconds_text)


def _or_unknown(value: Any, show: Callable[[float], str]) -> str:
    number = _number(value)
    return _UNKNOWN if number is None else show(number)


def _number(value: Any) -> float | None:
    """Read a number of the answer: what has no end is a text in JSON."""
    return None if value is None or math.isnan(float(value)) else float(value)


_ROWS: tuple[tuple[str, Callable[[JsonObject], str]], ...] = (
    ("hit ratio", _hits),
    ("prefill use", _share("prefill_use")),
    ("time to first token, p90", _seconds("ttft_p90_seconds")),
    ("time between tokens", _seconds("itl_seconds")),
    ("KV memory use", _share("kv_use")),
)
