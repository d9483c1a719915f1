"""The latency model and its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sapwood_tools.replay.latency import (
    EngineLimits,
    LatencyModel,
    LatencyModelError,
    RequestSeconds,
    StepSeconds,
    from_json,
    read_model,
)

MODEL = LatencyModel(
    steps=StepSeconds(prefill_token=1e-3, prefill_key=2e-7, decode=8e-4, decode_key=2e-6, base=9e-3),
    requests=RequestSeconds(request=2e-3, request_token=1e-6),
    limits=EngineLimits(kv_tokens=65_536, chunk_tokens=256),
    noted={"model": "small", "residuals": [{"probe": "prompt of 16", "measured_seconds": 0.02, "told_seconds": 0.03}]},
)


def with_value(group: str, name: str, value: object) -> str:
    """Return the file of `MODEL` with one value of a group replaced."""
    read: dict[str, Any] = json.loads(MODEL.to_json())
    read[group][name] = value
    return json.dumps(read)


def test_a_model_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "latency.json").write_text(MODEL.to_json(), encoding="utf-8")
    assert read_model(tmp_path / "latency.json") == MODEL


def test_a_step_costs_what_its_parts_do() -> None:
    seconds = MODEL.steps.of(prefill_tokens=10, prefill_keys=1_000, num_decodes=4, decode_keys=500)
    assert seconds == pytest.approx(0.010 + 0.0002 + 0.0032 + 0.001 + 0.009)
    assert MODEL.requests.of(1_000) == pytest.approx(0.003)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "a latency model is a JSON object"),
        ('{"version": 7}', "version: 7 cannot be read"),
        ('{"version": 1}', "steps: None is not an object"),
        (with_value("steps", "base", -0.1), r"steps.base: -0.1 is too little"),
        (with_value("steps", "base", "fast"), r"steps.base: 'fast' is not a number"),
        (with_value("steps", "base", True), r"steps.base: True is not a number"),
        (with_value("steps", "base", float("nan")), r"steps.base: nan is not a number"),
        (with_value("steps", "decode_kez", 0.1), r"steps.decode_kez: there is no such field"),
        (with_value("requests", "request", None), r"requests.request: None is not a number"),
        (with_value("limits", "kv_tokens", 0.5), r"limits.kv_tokens: 0.5 is not a whole number"),
        (with_value("limits", "max_running", 0), r"limits.max_running: 0 is too little"),
    ],
)
def test_what_is_no_model_is_refused_with_field_and_value(text: str, complaint: str) -> None:
    with pytest.raises(LatencyModelError, match=complaint):
        from_json(text)


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "latency.json").write_bytes(b"\xff")
    with pytest.raises(LatencyModelError, match=r"latency\.json: "):
        read_model(tmp_path / "latency.json")
