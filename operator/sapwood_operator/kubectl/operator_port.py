"""Asks the operator that leads, through the API server's proxy to the operator's Service and with the person's rights:
``get`` of ``services/proxy``, of that one Service.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from kubernetes.client import ApiClient

from sapwood_contract.http import OPERATOR_NOT_LEADING, OPERATOR_WHAT_IF
from sapwood_operator.adapters.cluster import CONNECT_SECONDS, call
from sapwood_operator.adapters.outcomes import Absent, Done, Outcome, Refused, Retry
from sapwood_operator.kubectl.picture import JsonObject
from sapwood_operator.kubectl.reading import CannotRead

DEFAULT_OPERATOR = "sapwood/sapwood-operator"
"""As the chart's README installs it."""
_PORT = "http"
"""Name of the Service's port in the chart."""
_TRIES = 30
_PAUSE_SECONDS = 0.1
"""Between tries: the API server picks one of the operators at random, and a new leader needs a moment."""
_ANSWER_SECONDS = 10.0
_FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class OperatorService:
    """Where the operators answer."""

    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Path of the proxy to it."""
        service = f"{quote(self.name, safe='')}:{_PORT}"
        return f"/api/v1/namespaces/{quote(self.namespace, safe='')}/services/{service}/proxy"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def read_operator(text: str) -> OperatorService:
    """Read ``NAMESPACE/SERVICE``; raises ValueError."""
    word = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
    found = re.fullmatch(rf"({word})/({word})", text)
    if found is None:
        raise ValueError(f"{text!r} is no Service: give NAMESPACE/NAME, such as {DEFAULT_OPERATOR}")
    return OperatorService(found[1], found[2])


def ask_what_if(
    client: ApiClient,
    operator: OperatorService,
    query: Mapping[str, str],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> JsonObject:
    """Return what the operator that leads answers; raises `CannotRead`, which says what to do."""
    timeout = (CONNECT_SECONDS, _ANSWER_SECONDS)
    for _ in range(_TRIES):
        answer = call(client, "GET", operator.path + OPERATOR_WHAT_IF, query=query, body=None, timeout=timeout)
        if not _is_a_followers(answer):
            break
        sleep(_PAUSE_SECONDS)
    match answer:
        case Done(body):
            return body
        case Absent():
            raise CannotRead(f"there is no Service {operator}: name the operator's by --operator NAMESPACE/NAME")
        case Refused(status=status, message=message) if status == _FORBIDDEN:
            right = f"get of services/proxy, {operator.name}:{_PORT}, in namespace {operator.namespace}"
            raise CannotRead(f"{message}. What is asked goes through the API server and needs {right}")
        case Refused(message=message):
            raise CannotRead(message)
        case Retry() if _is_a_followers(answer):
            raise CannotRead(f"no operator of {operator} leads just now; ask again in a minute")
        case Retry(reason, message):
            raise CannotRead(f"the operator cannot be asked: {reason}: {message}")


def _is_a_followers(answer: Outcome) -> bool:
    return isinstance(answer, Retry) and answer.reason == OPERATOR_NOT_LEADING
