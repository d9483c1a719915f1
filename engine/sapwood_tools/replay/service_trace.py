"""The last hour of a running service as a trace: what its gateways tell, made one.

Each gateway has the requests that it passed on, with ids of its own for what prompts begin with, and with names for the
same that the others use too. Times are counted back from the answers, so clocks of machines do not matter.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from sapwood_contract.http import TRACE_BLOCK_TOKENS, TRACE_NAME_BYTES, TRACE_SECONDS, ServiceTrace, TracedRequest
from sapwood_tools.replay.trace import TraceRequest, request

LEAST_REQUESTS = 20
"""Fewer are no load that a replay could tell anything of."""
_WHOLE_SECONDS = TRACE_SECONDS - 1


class NoServiceTrace(Exception):
    """There is nothing of the service to replay; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one gateway has said."""

    gateway: str
    """What a person calls it."""
    trace: ServiceTrace


def read_answer(gateway: str, document: Any) -> Answer:
    """Return what ``document``, JSON of ``gateway``, says; raises `NoServiceTrace` where it is something else."""
    try:
        trace = msgspec.convert(document, ServiceTrace)
        b64decode(trace.block_names, validate=True)
        for each in trace.requests:
            if each.input_length < 1 or len(each.hash_ids) != -(-each.input_length // TRACE_BLOCK_TOKENS):
                raise ValueError(f"{each.input_length} tokens and {len(each.hash_ids)} blocks")
    except ValueError as error:  # what msgspec and base64 raise too
        raise NoServiceTrace(
            f"{gateway} answers with something that is not understood ({error}): is it the admin address of a Sapwood "
            "gateway of this version?"
        ) from None
    return Answer(gateway, trace)


def merged(answers: Sequence[Answer]) -> list[TracedRequest]:
    """Return the requests of all, in order of arrival, the first at 0; equal ids are the same, whoever told of them."""
    named = [_names(answer.trace) for answer in answers]
    every = [(each, number) for number, answer in enumerate(answers) for each in answer.trace.requests]
    every.sort(key=lambda found: found[0].timestamp)
    ids: dict[bytes | tuple[int, int], int] = {}
    lines = []
    for each, number in every:
        blocks = [ids.setdefault(named[number].get(block, (number, block)), len(ids)) for block in each.hash_ids]
        lines.append(replace(each, timestamp=each.timestamp - every[0][0].timestamp, hash_ids=tuple(blocks)))
    return lines


def replayable(requests: Sequence[TracedRequest], service: str) -> list[TraceRequest]:
    """Return what a replay takes; raises `NoServiceTrace` where there is too little to replay."""
    if not requests:
        raise NoServiceTrace(f"{service} has answered nothing in the last hour: there is nothing to replay")
    if len(requests) < LEAST_REQUESTS:
        raise NoServiceTrace(
            f"{service} has answered {len(requests)} requests in the last hour, and fewer than {LEAST_REQUESTS} tell "
            "nothing: ask again when there were more (--save writes these all the same)"
        )
    return [request(each.timestamp / 1000, each.input_length, each.output_length, each.hash_ids) for each in requests]


def written(requests: Sequence[TracedRequest]) -> str:
    """Return the text of a trace file."""
    lines = [json.dumps(msgspec.to_builtins(each), separators=(",", ":")) for each in requests]
    return "".join(f"{line}\n" for line in lines)


def save(requests: Sequence[TracedRequest], path: Path) -> None:
    """Write a trace file; raises `OSError`."""
    path.write_text(written(requests), encoding="utf-8")


def missing(answers: Sequence[Answer]) -> list[str]:
    """Return a sentence for each gateway that has not the whole hour."""
    return [
        f"{each.gateway} knows the last {each.trace.covered_seconds:,.0f} s: what it passed on before is not here"
        for each in answers
        if each.trace.covered_seconds < _WHOLE_SECONDS
    ]


def _names(trace: ServiceTrace) -> Mapping[int, bytes]:
    names = b64decode(trace.block_names)
    return {
        number: names[at : at + TRACE_NAME_BYTES] for number, at in enumerate(range(0, len(names), TRACE_NAME_BYTES))
    }
