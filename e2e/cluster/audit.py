"""What the API server's audit log says: who wrote what. Tests count writes here, at the only place that sees all.

An event stands in the log when its answer has been sent; give an expected write a moment, and an unexpected one the
chance to show itself, before you read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    # One event a call: only when it is answered, without the objects, so that no Secret can get into the log.
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata"}],
}
WRITE_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Call:
    """One answered call of the Kubernetes API."""

    user: str
    user_agent: str
    verb: str
    resource: str
    """``group/plural`` (``plural`` alone in the core group), with ``/subresource``; the path for anything else."""
    namespace: str
    name: str
    code: int

    @property
    def is_write(self) -> bool:
        return self.verb in WRITE_VERBS


def call_of(event: dict[str, object]) -> Call:
    """Return the call that one line of the log describes."""
    user, target, answer = (_object(event, key) for key in ("user", "objectRef", "responseStatus"))
    parts = [target.get("apiGroup"), target.get("resource"), target.get("subresource")]
    code = answer.get("code", 0)
    assert isinstance(code, int)
    return Call(
        user=str(user.get("username", "")),
        user_agent=str(event.get("userAgent", "")),
        verb=str(event["verb"]),
        resource="/".join(str(part) for part in parts if part) or str(event.get("requestURI", "")),
        namespace=str(target.get("namespace", "")),
        name=str(target.get("name", "")),
        code=code,
    )


def _object(event: dict[str, object], key: str) -> dict[str, object]:
    value = event.get(key)
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class AuditLog:
    """The log of one cluster. A position in it is a number of bytes."""

    path: Path

    def position(self) -> int:
        """Return the end of the log, to ask later what came after it."""
        return self.path.stat().st_size if self.path.exists() else 0

    def calls(self, since: int = 0) -> Iterator[Call]:
        """Yield the calls after a position; a line that is still being written is left out."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(since)
            for line in file:
                if line.endswith(b"\n"):
                    yield call_of(json.loads(line))

    def writes(self, user: str, since: int = 0) -> list[Call]:
        """Return the writes of one user, for example ``system:serviceaccount:sapwood:sapwood-operator``."""
        return [call for call in self.calls(since) if call.user == user and call.is_write]
