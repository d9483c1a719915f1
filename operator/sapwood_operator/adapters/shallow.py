"""Documents of the API server, cut where they are nested so deeply that reading them would fail.

A pod template may hold what its author likes, some thousand levels deep (Kubernetes takes 10,000). Readers of JSON give
up before that, on the whole document: one object would hide all others of a list. What is cut off here is refused by
`domain.spec` all the same.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sapwood_operator.domain.spec import MAX_LEVELS

DOCUMENT_LEVELS = MAX_LEVELS + 16
"""An object stands a few levels below the top of a list or of a watch's event."""
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


def read_json(document: bytes) -> Any:
    """Return what a JSON ``document`` says, cut as by `shallow`; raises ValueError for what is no JSON."""
    return json.loads(shallow(document))


def shallow(document: bytes) -> bytes:
    """Return a JSON ``document`` with null for everything that is nested deeper than `DOCUMENT_LEVELS`."""
    level, begin = 0, 0
    kept: list[bytes] = []
    for token in _TOKEN.finditer(document):
        mark = document[token.start()]
        if mark in b"[{":
            level += 1
            if level == DOCUMENT_LEVELS + 1:
                kept.append(document[begin : token.start()])
                begin = len(document)
        elif mark in b"]}":
            if level == DOCUMENT_LEVELS + 1:
                kept.append(b"null")
                begin = token.end()
            level -= 1
    kept.append(document[begin:])
    return b"".join(kept)
