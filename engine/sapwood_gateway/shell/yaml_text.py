"""YAML, of which JSON is a part, out of files that the gateway follows; what is wrong is told without their words."""

from __future__ import annotations

from typing import Any

import yaml

from sapwood_contract.expansion import check_expansion

_MAX_BYTES = 16 * 2**20
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one written in C where PyYAML has it: ten times as fast."""


class UnreadableText(ValueError):
    """It cannot be read; the message quotes nothing of it, for it may hold a tenant's name."""


def documents_in(text: bytes) -> list[Any]:
    """Return the documents, with None for one that is empty; raises `UnreadableText`."""
    if len(text) > _MAX_BYTES:
        raise UnreadableText(f"it has {len(text)} bytes; at most {_MAX_BYTES} are read")
    try:
        documents = list(yaml.load_all(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        raise UnreadableText(f"it is not YAML: line {line}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableText(f"it is not YAML ({type(error).__name__})") from None
    try:
        check_expansion(documents, len(text))
    except ValueError as error:
        raise UnreadableText(str(error)) from None
    return documents
