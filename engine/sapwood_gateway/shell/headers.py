"""Which headers go from a client to an engine and back: everything but what belongs to one connection (RFC 9110,
7.6.1), and what the message's way through the gateway makes wrong.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping

from multidict import CIMultiDict, CIMultiDictProxy

from sapwood_contract.trust import CREDENTIAL_HEADER, TRUSTED_HEADERS

REQUEST_ID = "X-Request-Id"
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

_OF_ONE_CONNECTION = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_GATEWAYS_OWN = frozenset(name.lower() for name in (CREDENTIAL_HEADER, *TRUSTED_HEADERS))
_REQUEST_ONLY = frozenset({"host", "content-length", "expect", REQUEST_ID.lower()}) | _GATEWAYS_OWN
"""Set anew for the engine: its own name, the length of the body as it is sent; the gateway has said 100 itself. And
what no client may say."""
_KEY = frozenset({"authorization"})
_TRACE = frozenset({"traceparent", "tracestate"})
EVENT_STREAM = "text/event-stream"


def for_engine(
    headers: CIMultiDictProxy[str], request_id: str, ours: Mapping[str, str], trace: Mapping[str, str]
) -> CIMultiDict[str]:
    """Return the headers of a client's request as the engine gets them.

    ``ours``: what only the gateway may say. Where it says something, the client's key is the gateway's alone.
    ``trace``: whose trace it is, instead of what the client says; empty: what the client says.
    """
    kept = _without(headers, _REQUEST_ONLY | (_KEY if ours else frozenset()) | (_TRACE if trace else frozenset()))
    kept[REQUEST_ID] = request_id
    kept.update(ours)
    kept.update(trace)
    return kept


def for_client(headers: CIMultiDictProxy[str], *, is_stream: bool) -> CIMultiDict[str]:
    """Return the headers of an engine's answer as the client gets them.

    A stream has no length, and says to whatever stands in between that it is not to be held back.
    """
    kept = _without(headers, frozenset({"content-length"}) if is_stream else frozenset())
    if is_stream:
        kept["X-Accel-Buffering"] = "no"
        kept.setdefault("Cache-Control", "no-cache")
    return kept


def can_be_passed_on(status: int, reason: str | None, headers: CIMultiDictProxy[str]) -> bool:
    """Tell whether an answer's head is one for a client: final, and without characters that end a line or worse."""
    return 200 <= status <= 599 and not any(map(_CONTROL_CHARACTER.search, (reason or "", *headers.values())))


def is_event_stream(headers: CIMultiDictProxy[str]) -> bool:
    """Tell whether an answer is a stream of events; a charset may follow the type."""
    return headers.get("Content-Type", "").partition(";")[0].strip().lower() == EVENT_STREAM


def sane_request_id(offered: str | None) -> str:
    """Return the id that a client gave, or a new one where it gave none that can be logged and sent on as it is."""
    return offered if offered is not None and _SANE_ID.fullmatch(offered) else uuid.uuid4().hex


def _without(headers: CIMultiDictProxy[str], dropped: Iterable[str]) -> CIMultiDict[str]:
    named = {name.strip().lower() for value in headers.getall("Connection", ()) for name in value.split(",")}
    unwanted = _OF_ONE_CONNECTION | named | frozenset(dropped)
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in unwanted)
