"""Where each session was last: a preference, for prompts that no replica is known to hold."""

from __future__ import annotations

from collections import OrderedDict

MOST_SESSIONS = 65_536
MOST_CHARACTERS = 512
"""Of a session's key; what is beyond is not looked at, so that memory stays bounded."""


def session_key(given: object, *, tenant: str = "") -> str | None:
    """Return the key that a request's ``prompt_cache_key`` or session header gives, None for none.

    ``tenant``: id of the one who gives it, without a space; what another tenant calls by the same name is another
    session.

    Nothing, an empty or a blank text and what is no text at all are no keys: taken for one, all requests without a
    session would be one session, and go to one replica.
    """
    key = given.strip()[:MOST_CHARACTERS] if isinstance(given, str) else ""
    return f"{tenant} {key}" if key else None


class Sessions:
    """Session -> replica, for the sessions used last."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._replicas: OrderedDict[str, str] = OrderedDict()

    def replica_of(self, session: str | None) -> str | None:
        """Return where ``session`` was last; None for no session, and for one that is new or long forgotten."""
        return None if session is None else self._replicas.get(session)

    def note(self, session: str | None, replica: str) -> None:
        """``session`` went to ``replica``."""
        if session is None:
            return
        self._replicas[session] = replica
        self._replicas.move_to_end(session)
        if len(self._replicas) > self._most:
            self._replicas.popitem(last=False)
