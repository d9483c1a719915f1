"""JSON that anybody may have had a part in, cut where it is nested so deeply that reading it would fail.

The API server takes objects of 10,000 levels (in ``metadata.managedFields`` of every kind), readers of JSON give up
before that, on the whole document: one object would hide all others of a list.
"""

from __future__ import annotations

import json
import re
from typing import Any

LEVELS = 100
"""More than any object has that is meant, and less than any reader takes."""
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


def read_json(document: bytes) -> Any:
    """Return what ``document`` says, cut by `shallow` where it is too deep; raises ValueError where it is no JSON."""
    try:
        return json.loads(document)
    except RecursionError:
        return json.loads(shallow(document))


def shallow(document: bytes, levels: int = LEVELS) -> bytes:
    """Return a JSON ``document`` with null for everything that is nested deeper than ``levels``."""
    level, begin = 0, 0
    kept: list[bytes] = []
    for token in _TOKEN.finditer(document):
        mark = document[token.start()]
        if mark in b"[{":
            level += 1
            if level == levels + 1:
                kept.append(document[begin : token.start()])
                begin = len(document)
        elif mark in b"]}":
            if level == levels + 1:
                kept.append(b"null")
                begin = token.end()
            level -= 1
    kept.append(document[begin:])
    return b"".join(kept)
