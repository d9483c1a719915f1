"""One engine's answers at one moment, as values; what it did not say is None. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sapwood_contract.http import EngineLoad, LoadSnapshot, RequestView
from sapwood_engine.core.miss_ratio import Curve, CurvePoint
from sapwood_tools.terminal_text import namespace_name
from sapwood_tools.top.figures import Figures

_Value = TypeVar("_Value")


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
    """Read ``/admin/load``; raises KeyError or TypeError for what is none."""
    whole = {**answer, "load": _known(LoadSnapshot, answer["load"]), "kv_events": None}
    return _known(EngineLoad, whole)


def read_requests(answer: Mapping[str, Any]) -> tuple[RequestView, ...]:
    """Read ``/admin/requests``; raises KeyError or TypeError for what is none."""
    return tuple(_known(RequestView, each) for each in answer["requests"])


def read_cache(answer: Mapping[str, Any]) -> Cache:
    """Read ``/admin/cache``; raises KeyError or TypeError for what is none."""
    return Cache(
        num_nodes=answer["num_nodes"],
        is_truncated=answer["truncated"],
        nodes=tuple(node for entry in answer["namespaces"] for node in _nodes(entry)),
        curve=_curve(answer.get("curve")),
    )


def _nodes(entry: Mapping[str, Any]) -> Iterator[CacheNode]:
    name = namespace_name(entry["namespace"])
    serials = {node["id"]: node["serial"] for node in entry["nodes"]}
    for node in entry["nodes"]:
        yield CacheNode(
            serial=node["serial"],
            parent=None if node["parent"] is None else serials[node["parent"]],
            namespace=name,
            num_tokens=node["num_tokens"],
            lock_ref=node["lock_ref"],
            hits=node["hits"],
            tick=node["tick"],
        )


def _curve(answer: Mapping[str, Any] | None) -> Curve | None:
    if not answer or not answer["points"]:
        return None
    points = tuple(_known(CurvePoint, point) for point in answer["points"])
    working_set = answer["working_set_tokens"]
    told = {**answer, "points": points, "working_set_tokens": math.nan if working_set is None else working_set}
    return _known(Curve, told)


def _known(kind: type[_Value], answer: Mapping[str, Any]) -> _Value:
    """Make a ``kind`` of the fields that this version knows: a newer engine may say more."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # always a dataclass here
    return kind(**{name: answer[name] for name in names if name in answer})
