"""How long an engine takes for what it does: a latency model, and the JSON file that `sapwood bench --fit` writes.

::

    step     = prefill_token * prefill tokens + prefill_key * keys they read
             + decode * decodes + decode_key * keys they read + base
    request  = request + request_token * prompt tokens

A step is what `core.step_cost` fits in a running engine, here as its clients see it: with all that one step's end is
away from the next one's. A request is what it takes besides: from the client through HTTP and tokeniser to the
scheduler, and from the step that brings the first token back to the client.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

VERSION = 1


class LatencyModelError(ValueError):
    """What was read is no latency model; the message names the field and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """The parts of a step's time, in seconds, none of them negative."""

    prefill_token: float
    prefill_key: float
    """For each key that each prefilled token reads."""
    decode: float
    decode_key: float
    base: float

    def of(self, *, prefill_tokens: float, prefill_keys: float, num_decodes: float, decode_keys: float) -> float:
        """Return the seconds of a step."""
        return (
            self.prefill_token * prefill_tokens
            + self.prefill_key * prefill_keys
            + self.decode * num_decodes
            + self.decode_key * decode_keys
            + self.base
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSeconds:
    """What a request takes beside steps, in seconds."""

    request: float
    request_token: float
    """For each token of the prompt, whether the cache holds it or not: sending, reading and tokenising it."""

    def of(self, num_prompt_tokens: int) -> float:
        """Return the seconds of a request."""
        return self.request + self.request_token * num_prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What an engine was started with, as of `sapwood_contract.launch.LaunchOptions`."""

    kv_tokens: int
    """Room of its KV cache."""
    max_running: int = 64
    max_step_tokens: int = 2048
    chunk_tokens: int = 512
    itl_target_seconds: float = 0.08
    ttft_target_seconds: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyModel:
    """One model on one machine."""

    steps: StepSeconds
    requests: RequestSeconds
    limits: EngineLimits
    noted: Mapping[str, Any] = field(default_factory=dict)
    """For people: what machine, date, model, options and how well it fitted. Nothing is reckoned from it."""

    def to_json(self) -> str:
        """Return the text of a file, which `from_json` reads back as an equal value."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=2) + "\n"


def from_json(text: str) -> LatencyModel:
    """Return the model that ``text`` holds; `LatencyModelError` where it holds none."""
    try:
        read = json.loads(text)
    except ValueError as error:
        raise LatencyModelError(f"not JSON: {error}") from None
    if not isinstance(read, dict):
        raise LatencyModelError(f"a latency model is a JSON object, not {text[:40]!r}")
    if read.get("version") != VERSION:
        raise LatencyModelError(
            f"version: {read.get('version')!r} cannot be read, only {VERSION}; write it anew with sapwood bench --fit"
        )
    noted = read.get("noted", {})
    if not isinstance(noted, dict):
        raise LatencyModelError(f"noted: {noted!r} is not an object")
    return LatencyModel(
        steps=_group(read, "steps", StepSeconds),
        requests=_group(read, "requests", RequestSeconds),
        limits=_group(read, "limits", EngineLimits),
        noted=noted,
    )


def read_model(path: Path) -> LatencyModel:
    """Return the model in the file at ``path``.

    `OSError` where it cannot be read, `LatencyModelError` where it is none.
    """
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (LatencyModelError, UnicodeDecodeError) as error:
        raise LatencyModelError(f"{path}: {error}") from None


Group = TypeVar("Group", StepSeconds, RequestSeconds, EngineLimits)


def _group(read: Mapping[str, Any], name: str, group: type[Group]) -> Group:
    given = read.get(name)
    if not isinstance(given, dict):
        raise LatencyModelError(f"{name}: {given!r} is not an object")
    known = {each.name: each.type for each in fields(group)}
    if unknown := sorted(set(given) - set(known)):
        raise LatencyModelError(f"{name}.{unknown[0]}: there is no such field; known are {', '.join(known)}")
    values: dict[str, Any] = {
        each: _number(f"{name}.{each}", given.get(each), whole=kind == "int") for each, kind in known.items()
    }
    return group(**values)


def _number(name: str, value: object, *, whole: bool) -> float | int:
    """Seconds are from 0 on, limits above 0: no engine runs with a limit of nothing."""
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not math.isfinite(value):
        raise LatencyModelError(f"{name}: {value!r} is not a {'whole ' if whole else ''}number")
    if value < 0 or (value == 0 and name.startswith("limits.")):
        raise LatencyModelError(f"{name}: {value!r} is too little")
    return value
