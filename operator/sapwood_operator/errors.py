"""The exception tree: what may go wrong, told so that a person can act on it.

::

    OperatorError
    ├── SettingsError   the operator refuses to start: option, value, what to do
    ├── AccessError     there is no way to the API server: what was looked for
    └── InvalidSpec     an object cannot be used: field path, value, what to do; becomes a condition

An expected refusal inside the domain is a value, never an exception of this tree.
"""

from __future__ import annotations

_MAX_QUOTED_CHARACTERS = 80


def quote(value: object) -> str:
    """Return ``repr(value)`` cut to 80 characters, so that a condition stays readable."""
    text = repr(value)
    return text if len(text) <= _MAX_QUOTED_CHARACTERS else text[: _MAX_QUOTED_CHARACTERS - 1] + "…"


class OperatorError(Exception):
    """Root of every error that the operator raises on purpose."""


class SettingsError(OperatorError):
    """An option of the operator that cannot be used."""

    def __init__(self, option: str, value: object, fix: str) -> None:
        super().__init__(f"{option}: {quote(value)} cannot be used: {fix}")
        self.option = option


class AccessError(OperatorError):
    """No credentials for an API server were found."""


class InvalidSpec(OperatorError):
    """A field of an object that cannot be used, although the schema let it through."""

    def __init__(self, path: str, value: object, fix: str) -> None:
        super().__init__(f"{path}: {quote(value)} cannot be used: {fix}")
        self.path = path
