"""A profile's stacks are put down to the part whose code was running."""

from __future__ import annotations

from collections import Counter

import pytest

from service_profile import count_parts, judge_parts, part_of


@pytest.mark.parametrize(
    ("stack", "part"),
    [
        ("run (sapwood_engine/service/engine_loop.py:90);plan (sapwood_engine/core/scheduler.py:12)", "planning"),
        ("run (sapwood_engine/runtime/executor.py:9);forward (sapwood_engine/models/compiled.py:80)", "model"),
        ("a (sapwood_engine/runtime/model_runner.py:4);cat (torch/functional.py:7)", "tensors"),
        ("a (sapwood_text/tokenizer.py:4)", "detokenising"),
        ("a (sapwood_engine/api/sse.py:4);write (uvicorn/protocol.py:3)", "sse"),
        ("loop (asyncio/base_events.py:1)", "elsewhere"),
    ],
)
def test_time_belongs_to_the_innermost_code_of_ours(stack: str, part: str) -> None:
    assert part_of(stack) == part


def test_looks_at_the_same_part_are_added_up() -> None:
    lines = ["a (sapwood_engine/core/x.py:1) 3", "b (sapwood_engine/core/y.py:2) 4", "c (x.py:1) 1"]
    assert count_parts(lines) == Counter({"planning": 7, "elsewhere": 1})


def test_everything_but_the_model_is_held_against_a_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    worker = Counter({"model": 440, "planning": 40})
    assert judge_parts({"worker": worker, "http": Counter({"sse": 40})}, 2)
    assert not judge_parts({"worker": worker, "http": Counter({"sse": 80})}, 2)
    assert "all but the model: 0.12 is not at most 0.1" in capsys.readouterr().err
