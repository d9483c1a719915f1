"""The last hour of a service, out of what its gateways tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support_workload import traced

from sapwood_contract.http import ServiceTrace, TracedRequest
from sapwood_tools.replay.service_trace import (
    LEAST_REQUESTS,
    Answer,
    NoServiceTrace,
    merged,
    missing,
    read_answer,
    replayable,
    save,
)
from sapwood_tools.replay.trace import read_trace

A, B, C = (bytes([number]) * 8 for number in range(3))


def merge(*traces: ServiceTrace) -> list[TracedRequest]:
    return merged([Answer(f"gateway {number}", each) for number, each in enumerate(traces)])


def test_requests_of_all_gateways_are_in_order_and_the_first_comes_at_once() -> None:
    found = merge(traced((20.0, 100, [0]), (40.0, 300, [1])), traced((30.5, 200, [0])))
    assert [(each.timestamp, each.input_length) for each in found] == [(0, 100), (10_500, 200), (20_000, 300)]


def test_what_gateways_name_alike_is_one_and_what_has_no_name_is_nobody_elses() -> None:
    found = merge(
        traced((1.0, 1_500, [0, 1, 2]), names=[A, B]),
        traced((2.0, 1_500, [0, 1, 2]), names=[A, C]),
        traced((3.0, 1_500, [1, 0, 2]), names=[B, A]),
    )
    assert [each.hash_ids for each in found] == [(0, 1, 2), (0, 3, 4), (0, 1, 5)]


def test_without_names_the_blocks_of_two_gateways_have_nothing_in_common() -> None:
    assert [each.hash_ids for each in merge(*[traced((1.0, 600, [0, 1]), (2.0, 500, [0]))] * 2)] == [
        (0, 1),
        (2, 3),
        (0,),
        (2,),
    ]


def test_what_is_written_is_read_as_the_trace_that_it_is(tmp_path: Path) -> None:
    requests = merge(traced(*((at, 600 + at, [0, at + 1]) for at in range(LEAST_REQUESTS))))
    save(requests, path := tmp_path / "hour.jsonl")
    assert read_trace(path) == replayable(requests, "team/chat")
    assert list(json.loads(path.read_text().splitlines()[0])) == [
        "timestamp",
        "input_length",
        "output_length",
        "hash_ids",
    ]


@pytest.mark.parametrize(
    ("num", "told"), [(0, "team/chat has answered nothing"), (LEAST_REQUESTS - 1, "answered 19 requests")]
)
def test_too_little_to_replay_is_told(num: int, told: str) -> None:
    with pytest.raises(NoServiceTrace, match=told):
        replayable([TracedRequest(at, 100, 1, (at,)) for at in range(num)], "team/chat")


def test_who_has_not_the_whole_hour_is_told() -> None:
    answers = [Answer("a", traced()), Answer("b", traced(covered=1_234.5))]
    assert missing(answers) == ["b knows the last 1,234 s: what it passed on before is not here"]


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"requests": []},
        {"covered_seconds": 1.0, "requests": [], "block_names": "?"},
        {"covered_seconds": 1.0, "requests": [{"timestamp": 1}]},
        msgspec.to_builtins(traced((1.0, 600, [0]))),
        msgspec.to_builtins(traced((1.0, 0, []))),
    ],
    ids=repr,
)
def test_an_answer_of_something_else_is_told(document: Any) -> None:
    with pytest.raises(NoServiceTrace, match="http://one answers with something that is not understood"):
        read_answer("http://one", document)
