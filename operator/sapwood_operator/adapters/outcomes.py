"""What a call to the API server came to, told from the answer alone.

Three ends: it was done; it was refused, and will be again until somebody changes something; or it failed in a way
that time alone may cure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sapwood_contract.shallow import shallow

MAX_MESSAGE = 1024
"""Characters of a refusal's message that are kept: it goes into a condition, which has a bound."""
_PASSING = {401, 408, 409, 429}
"""Statuses below 500 that another try may cure: a token just replaced, a write that met another one, a server that
asks for patience."""
UNREACHABLE = "Unreachable"
"""Reason of a failure because the server gave no answer."""
API_GONE = "ApiGone"
"""Reason of a refusal because the cluster does not serve the kind: not yet, or not any more."""
NAMESPACE_LEAVING = "NamespaceTerminating"
"""Reason of a failure because the namespace is being deleted; Kubernetes calls it so."""


@dataclass(frozen=True, slots=True)
class Done:
    """The server did it; ``body`` is its answer, an object as a rule."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no such object."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The server will not do it as things are; ``message`` is for people."""

    status: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Retry:
    """It failed, and may work later: not before ``after_seconds`` where the server said so, else 0."""

    reason: str
    message: str
    after_seconds: float = 0.0


Outcome = Done | Absent | Refused | Retry


def judge(status: int, body: bytes, retry_after: str | None) -> Outcome:
    """Judge an HTTP answer: its status, body and ``Retry-After`` header."""
    answer = _json(body)
    if 200 <= status < 300:
        return Done(answer)
    reason = str(answer.get("reason") or f"Status{status}")
    message = str(answer.get("message") or body[:MAX_MESSAGE].decode("utf-8", "replace"))[:MAX_MESSAGE]
    if status == 404:
        return _judge_not_found(answer, reason, message)
    if _is_api_leaving(status, message):
        return Refused(status, API_GONE, message)
    if _is_a_webhooks_fault(status, message):
        return Refused(status, "WebhookFailed", message)
    if _is_no_such_object(status, message):
        return Refused(status, "Invalid", message)
    if _is_leaving(answer):
        return Retry(NAMESPACE_LEAVING, message)
    if status in _PASSING or status >= 500:
        return Retry(reason, message, _seconds(retry_after))
    return Refused(status, reason, message)


def unreachable(error: Exception) -> Retry:
    """Judge a call that got no answer: no connection, a timeout, a connection cut."""
    return Retry(UNREACHABLE, f"{type(error).__name__}: {error}"[:MAX_MESSAGE])


def _judge_not_found(answer: Mapping[str, Any], reason: str, message: str) -> Outcome:
    """An object that is not there is an answer; a kind or a namespace that is not there is a refusal."""
    details = answer.get("details") or {}
    if details.get("kind") == "namespaces":
        return Refused(404, reason, message)
    return Absent() if details.get("name") else Refused(404, API_GONE, message)


def _is_api_leaving(status: int, message: str) -> bool:
    """A CRD is being deleted: nothing of it is made any more, which the server calls a lack of rights."""
    return status == 403 and "custom resource definition is terminating" in message


def _is_a_webhooks_fault(status: int, message: str) -> bool:
    """Somebody else's admission webhook is down: it fails again until that person acts, so it must be seen."""
    return status >= 500 and "failed calling webhook" in message


def _is_no_such_object(status: int, message: str) -> bool:
    """An apply of a field that the kind does not have, or of a value that the field cannot have, as in a pod template:
    the server calls it its own error.
    """
    return status >= 500 and message.startswith(("failed to create typed patch object", "failed to convert new object"))


def _is_leaving(answer: Mapping[str, Any]) -> bool:
    """The namespace is being deleted, and its services with it, in the end: nothing is made in it any more."""
    causes = (answer.get("details") or {}).get("causes") or ()
    return any(cause.get("reason") == NAMESPACE_LEAVING for cause in causes)


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after is not None and retry_after.isdigit() else 0.0


def _json(body: bytes) -> Mapping[str, Any]:
    """A proxy between us and the server may answer with anything."""
    try:
        answer = json.loads(shallow(body))
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
