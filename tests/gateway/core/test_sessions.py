"""What is a session, and for how long it is remembered."""

from __future__ import annotations

import pytest

from sapwood_gateway.core.sessions import MOST_CHARACTERS, Sessions, session_key


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("user-7", "user-7"),
        ("  user-7\t", "user-7"),
        ("", None),
        (" \n\t ", None),
        (None, None),
        (0, None),
        (["user-7"], None),
        ({"key": None}, None),
        ("x" * 10_000, "x" * MOST_CHARACTERS),
    ],
)
def test_only_a_text_that_is_not_blank_names_a_session(given: object, key: str | None) -> None:  # H15
    assert session_key(given, tenant="ns/acme") == (key and f"ns/acme {key}")


def test_a_session_is_its_tenants_alone() -> None:
    assert session_key("user-7", tenant="ns/a") != session_key("user-7", tenant="ns/b")


def test_the_sessions_used_last_are_remembered() -> None:
    sessions = Sessions(most=2)
    sessions.note("x", "a")
    sessions.note("y", "b")
    sessions.note("x", "c")
    sessions.note("z", "d")
    sessions.note(None, "e")
    assert [sessions.replica_of(session) for session in ("x", "y", "z", None)] == ["c", None, "d", None]
