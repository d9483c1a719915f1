"""Fields that the schema has and that nothing acts on yet: each is named until its behaviour is built.

The condition ``Unsupported`` tells them, so that a user who asked for something never silently goes without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sapwood_operator.domain.spec import ATTENTION, GPU

Test = Callable[[Any], bool]


def _given(_value: Any) -> bool:
    return True


def _enabled(value: Any) -> bool:
    return not isinstance(value, Mapping) or value.get("enabled", True) is not False


def _created(value: Any) -> bool:
    return not isinstance(value, Mapping) or value.get("create", False) is not False


def _other_than(*built: Any) -> Test:
    return lambda value: value not in built


NOT_BUILT: tuple[tuple[str, Test], ...] = (
    ("model.source.s3", _given),
    ("engine.device", _other_than("Auto", "CPU")),
    ("engine.parallelism.tensor", _other_than(1)),
    ("engine.parallelism.data", _other_than(1)),
    ("engine.kvCache.dtype", _other_than("Auto")),
    ("engine.kvCache.host", _given),
    ("engine.kvCache.shared", _given),
    ("engine.attentionBackend", _other_than(*ATTENTION)),
    ("engine.speculative", _given),
    ("engine.lora", _enabled),
    ("engine.grammarBackend", _given),
    (f"resources.limits[{GPU}]", _other_than("0", 0)),
    ("exposure.inferencePool", _created),
    ("observability.dashboards", _other_than(False)),
)
"""Path below ``spec``, and whether the value there asks for what is not built."""


def unsupported_fields(service: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths of the fields of a live service that nothing acts on, in the order of the table."""
    spec = service.get("spec")
    return tuple(f"spec.{path}" for path, asks in NOT_BUILT if _asks(spec, _steps(path), asks))


def _steps(path: str) -> list[str]:
    """``resources.limits[nvidia.com/gpu]`` has three steps."""
    plain, _, key = path.partition("[")
    return [*plain.split("."), *([key[:-1]] if key else [])]


def _asks(value: Any, steps: list[str], asks: Test) -> bool:
    for step in steps:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value is not None and asks(value)
