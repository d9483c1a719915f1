"""One engine's answers at one moment, as values; what it did not say is None. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sapwood_contract.curve import Curve, CurvePoint
from sapwood_contract.http import EngineLoad, LoadSnapshot, RequestView
from sapwood_tools.terminal_text import namespace_name
from sapwood_tools.top import fields
from sapwood_tools.top.figures import Figures


@dataclass(frozen=True, slots=True)
class CacheNode:
    """One node of the radix tree."""

    serial: int
    """Its own for as long as it is in the tree, and never another's of this engine."""
    parent: int | None
    """Serial of the node above; None at the top."""
    namespace: str
    num_tokens: int
    lock_ref: int
    hits: int
    tick: int
    """Of the last use, as the engine counts them."""


@dataclass(frozen=True, slots=True)
class Cache:
    """The radix tree, or as much of it as was asked for."""

    num_nodes: int
    is_truncated: bool
    nodes: tuple[CacheNode, ...]
    curve: Curve | None
    """None where the engine measures none, or has not seen enough."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one engine answered; each of the four questions may have had no answer."""

    at: float
    """Seconds of the asker's monotonic clock."""
    load: EngineLoad | None = None
    figures: Figures | None = None
    requests: tuple[RequestView, ...] | None = None
    cache: Cache | None = None
    problem: str = ""
    """Why the first question without an answer has none."""

    @property
    def has_answer(self) -> bool:
        """Whether anything was said."""
        return any(each is not None for each in (self.load, self.figures, self.requests, self.cache))


def read_load(answer: Mapping[str, Any]) -> EngineLoad:
    """Read ``/admin/load``; all three raise LookupError, TypeError, ValueError or AttributeError for what is none."""
    load = answer["load"]
    names = [field.name for field in dataclasses.fields(LoadSnapshot)]
    snapshot = LoadSnapshot(**{name: fields.count(load[name]) for name in names if name in load})
    return EngineLoad(fields.text(answer["model"]), fields.word(answer["state"]), snapshot)


def read_requests(answer: Mapping[str, Any]) -> tuple[RequestView, ...]:
    """Read ``/admin/requests``."""
    return tuple(_request(each) for each in answer["requests"])


def _request(each: Mapping[str, Any]) -> RequestView:
    finish, cached = each["finish"], each["num_cached_tokens"]
    return RequestView(
        request_id=fields.text(each["request_id"]),
        state=fields.word(each["state"]),
        finish=None if finish is None else fields.word(finish),
        age_seconds=fields.number(each["age_seconds"]),
        duration_seconds=fields.number(each["duration_seconds"]),
        num_prompt_tokens=fields.count(each["num_prompt_tokens"]),
        num_cached_tokens=None if cached is None else fields.count(cached),
        num_output_tokens=fields.count(each["num_output_tokens"]),
        phases={name: fields.number(seconds) for name, seconds in each["phases"].items()},
    )


def read_cache(answer: Mapping[str, Any]) -> Cache:
    """Read ``/admin/cache``."""
    nodes = tuple(node for entry in answer["namespaces"] for node in _nodes(entry))
    if len({node.serial for node in nodes}) < len(nodes):
        raise ValueError("two nodes have one serial")
    return Cache(
        num_nodes=fields.count(answer["num_nodes"]),
        is_truncated=fields.flag(answer["truncated"]),
        nodes=nodes,
        curve=_curve(answer.get("curve")),
    )


def _nodes(entry: Mapping[str, Any]) -> Iterator[CacheNode]:
    """Yield the nodes of a namespace; each is listed below its parent, so none is above itself."""
    name = namespace_name(entry["namespace"])
    serials: dict[int | None, int | None] = {None: None}
    for node in entry["nodes"]:
        serial = fields.count(node["serial"])
        yield CacheNode(
            serial=serial,
            parent=serials[node["parent"]],
            namespace=name,
            num_tokens=fields.count(node["num_tokens"]),
            lock_ref=fields.count(node["lock_ref"]),
            hits=fields.count(node["hits"]),
            tick=fields.count(node["tick"]),
        )
        serials[fields.count(node["id"])] = serial


def _curve(answer: Mapping[str, Any] | None) -> Curve | None:
    if not answer or not answer["points"] or not answer["capacity_tokens"]:
        return None
    return Curve(
        enabled=fields.flag(answer["enabled"]),
        sample_rate=fields.number(answer["sample_rate"]),
        num_samples=fields.count(answer["num_samples"]),
        capacity_tokens=fields.count(answer["capacity_tokens"]),
        points=tuple(_point(point) for point in answer["points"]),
        working_set_tokens=fields.number_or_nan(answer["working_set_tokens"]),
        regret_tokens=fields.count(answer["regret_tokens"]),
    )


def _point(point: Mapping[str, Any]) -> CurvePoint:
    capacity = point["capacity_tokens"]
    return CurvePoint(None if capacity is None else fields.number(capacity), fields.number(point["hit_ratio"]))
