"""``/autoscaling`` and ``/what-if`` at the operator's own port: what the leader knows of a service that scales.

Numbers of a service, no prompt and no tenant: the port is as open as the metrics beside it. Answers are JSON. A
refusal has ``reason``, for programs, and ``message``, for people, as those of the API server have, through whose proxy
`kubectl sapwood` asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

from sapwood_contract.http import OPERATOR_AUTOSCALING, OPERATOR_NOT_LEADING, OPERATOR_WHAT_IF
from sapwood_operator.domain.scaling_policy import MOST_REPLICAS

LEAST_MEMORY, MOST_MEMORY = 0.1, 100.0
"""Bounds of ``memory``, in times the present KV memory."""
_SHOWN_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why there is none: HTTP status, and a word and a sentence."""

    status: int
    reason: str
    message: str


Answer = Mapping[str, Any] | NoAnswer


class Outlooks(Protocol):
    """Knows services: `handlers.outlooks.ServiceOutlooks`."""

    def told(self, namespace: str, name: str) -> Answer:
        """Return what is decided about a service, and from what."""

    def outlook(self, namespace: str, name: str, *, replicas: int, memory_factor: float) -> Answer:
        """Return what another number of replicas would do."""


@dataclass(frozen=True, slots=True)
class NotLeading:
    """This operator waits to lead, and knows nothing of replicas."""


NOBODY_LEADS = NotLeading()
_NOT_LEADING = NoAnswer(
    503, OPERATOR_NOT_LEADING, "not leading: this operator measures nothing, ask the one that leads"
)


def scaling_routes(outlooks: Callable[[], Outlooks | NotLeading]) -> list[web.RouteDef]:
    """Return the routes; ``outlooks``: who knows now."""

    async def autoscaling(request: web.Request) -> web.Response:
        try:
            namespace, name = _text(request, "namespace"), _text(request, "name")
        except ValueError as error:
            return _response(NoAnswer(400, "BadQuery", str(error)))
        knows = outlooks()
        return _response(_NOT_LEADING if isinstance(knows, NotLeading) else knows.told(namespace, name))

    async def what_if(request: web.Request) -> web.Response:
        try:
            namespace, name = _text(request, "namespace"), _text(request, "name")
            replicas, memory = replicas_of(_text(request, "replicas")), memory_of(request.query.get("memory", "1"))
        except ValueError as error:
            return _response(NoAnswer(400, "BadQuery", str(error)))
        knows = outlooks()
        if isinstance(knows, NotLeading):
            return _response(_NOT_LEADING)
        return _response(knows.outlook(namespace, name, replicas=replicas, memory_factor=memory))

    return [web.get(OPERATOR_AUTOSCALING, autoscaling), web.get(OPERATOR_WHAT_IF, what_if)]


def replicas_of(text: str) -> int:
    """Read a number of replicas; raises ValueError, which says what to give."""
    if re.fullmatch(r"[0-9]{1,4}", text, re.ASCII) and 1 <= int(text) <= MOST_REPLICAS:
        return int(text)
    raise ValueError(f"replicas: {_shown(text)} is no number from 1 to {MOST_REPLICAS}")


def memory_of(text: str) -> float:
    """Read a factor of the KV memory; raises ValueError, which says what to give."""
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?", text, re.ASCII) and LEAST_MEMORY <= float(text) <= MOST_MEMORY:
        return float(text)
    wanted = f"a factor of the present KV memory from {LEAST_MEMORY:g} to {MOST_MEMORY:g}, such as 2 or 1.5"
    raise ValueError(f"memory: {_shown(text)} is not {wanted}")


def _text(request: web.Request, name: str) -> str:
    text = request.query.get(name, "")
    if not text:
        raise ValueError(f"{name}: it is missing; ask for ?namespace=…&name=…")
    return text


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")


def _response(answer: Answer) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    if isinstance(answer, NoAnswer):
        body = {"reason": answer.reason, "message": answer.message}
        return web.json_response(body, status=answer.status, headers=headers)
    return web.json_response(answer, headers=headers)
