"""What is remembered from decision to decision, as it stands in ``status.autoscaling``: so a new leader has it.

``desired`` and ``decisions`` are for people too; ``state`` holds what only the next decision needs. Times are texts of
whole seconds, as all of Kubernetes writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sapwood_operator.autoscaling.values import Change, State

MOST_CHANGES = 10
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def to_status(state: State) -> dict[str, Any]:
    """Return the parts of ``status.autoscaling`` that hold a state, without fields that are unknown."""
    clocks = {
        "fewerSince": _written(state.fewer_since),
        "moreSince": _written(state.more_since),
        "moreLeast": state.more_least,
        "wakingSince": _written(state.waking_since),
        "blindSince": _written(state.blind_since),
        "unmadeSince": _written(state.unmade_since),
        "triedTokens": state.tried_tokens,
        "tooManyTokens": state.too_many_tokens,
    }
    kept = {name: value for name, value in clocks.items() if value is not None}
    status: dict[str, Any] = {}
    if state.desired is not None:
        status["desired"] = state.desired
    if state.changes:
        status["lastScaleTime"] = _written(state.changes[0].at)
        status["decisions"] = [_change_to_status(change) for change in state.changes]
    if kept:
        status["state"] = kept
    return status


def from_status(status: Any) -> State:
    """Read a state; what is absent, of a wrong type or impossible is as if it had never been written."""
    outer = status if isinstance(status, Mapping) else {}
    clocks = outer.get("state")
    inner = clocks if isinstance(clocks, Mapping) else {}
    listed = outer.get("decisions")
    read = [_change_from_status(item) for item in listed] if isinstance(listed, list) else []
    return State(
        desired=_count(outer.get("desired")),
        fewer_since=_time(inner.get("fewerSince")),
        more_since=_time(inner.get("moreSince")),
        more_least=_count(inner.get("moreLeast")),
        waking_since=_time(inner.get("wakingSince")),
        blind_since=_time(inner.get("blindSince")),
        unmade_since=_time(inner.get("unmadeSince")),
        tried_tokens=_count(inner.get("triedTokens")),
        too_many_tokens=_count(inner.get("tooManyTokens")),
        changes=tuple(change for change in read if change is not None)[:MOST_CHANGES],
    )


def _change_to_status(change: Change) -> dict[str, Any]:
    return {
        "time": _written(change.at),
        "from": change.before,
        "to": change.after,
        "reason": change.reason,
        "message": change.message,
    }


def _change_from_status(item: Any) -> Change | None:
    if not isinstance(item, Mapping):
        return None
    at, before, after = _time(item.get("time")), _count(item.get("from")), _count(item.get("to"))
    reason, message = item.get("reason"), item.get("message")
    if at is None or before is None or after is None or not isinstance(reason, str):
        return None
    return Change(at, before, after, reason, message if isinstance(message, str) else "")


def _written(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(int(at), UTC).strftime(_TIME)


def _time(text: Any) -> float | None:
    if not isinstance(text, str):
        return None
    try:
        return datetime.strptime(text, _TIME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
