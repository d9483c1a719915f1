"""Traces: what was asked when, and which prompts began alike.

The format is that of Mooncake's release (FAST '25), one JSON object a line: ``timestamp`` in milliseconds,
``input_length`` and ``output_length`` in tokens, ``hash_ids`` with one id for each block of 512 tokens of the prompt,
the last block in part. Equal ids mean equal content behind equal beginnings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sapwood_contract.keys import TOKEN_BYTES, chain, namespace_root
from sapwood_engine.core.keys import token_key
from sapwood_engine.core.request import Namespace
from sapwood_gateway.core.prefix_affinity import Prompt

BLOCK_TOKENS = 512
"""Of the trace, in one block."""
PAGE_SIZE = 32
"""Slots of the page that stands for a block. Lengths shrink sixteenfold; what is shared with whom stays."""
SCALE = BLOCK_TOKENS // PAGE_SIZE
NAMESPACE = Namespace("replay")
_ROOT = namespace_root(NAMESPACE.model_revision, None, None, None)


class TraceError(ValueError):
    """What was given is no trace that can be replayed; of a file the message names line and what is wrong."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request; lengths in tokens of the trace."""

    arrival_seconds: float
    output_tokens: int
    blocks: tuple[int, ...]
    key: bytes
    """The prompt as the prefix cache takes it, a page for a block."""
    prompt: Prompt
    """The prompt as the gateway takes it."""


def read_trace(path: Path) -> list[TraceRequest]:
    """Return the requests of the file at ``path`` in order of arrival.

    Raises `OSError` where it cannot be read, `TraceError` where it is no trace or has no request.
    """
    requests = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                requests.append(_request(json.loads(line)))
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise TraceError(f"{path}, line {number}: not a request of a trace: {error!r}") from None
    if not requests:
        raise TraceError(f"{path}: no request in it")
    return sorted(requests, key=lambda request: request.arrival_seconds)


def request(arrival_seconds: float, num_tokens: int, output_tokens: int, blocks: tuple[int, ...]) -> TraceRequest:
    """Return a request; `ValueError` where the blocks are not as many as the prompt has."""
    if num_tokens < 1 or len(blocks) != -(-num_tokens // BLOCK_TOKENS):
        raise ValueError(f"{num_tokens} tokens and {len(blocks)} blocks of {BLOCK_TOKENS}")
    slots = -(-num_tokens // SCALE)
    key = b"".join(token_key([block]) * PAGE_SIZE for block in blocks)[: slots * TOKEN_BYTES]
    # A block that the prompt fills in part is none that a gateway would hash.
    whole = num_tokens // BLOCK_TOKENS * PAGE_SIZE * TOKEN_BYTES
    hashes = chain(_ROOT, key[:whole], PAGE_SIZE * TOKEN_BYTES)
    return TraceRequest(arrival_seconds, output_tokens, blocks, key, Prompt(num_tokens, hashes))


def _request(fields: dict[str, object]) -> TraceRequest:
    blocks = fields["hash_ids"]
    if not isinstance(blocks, list):
        raise TypeError("hash_ids is not a list")
    milliseconds, num_tokens, output_tokens, *ids = (
        _whole(number) for number in (fields["timestamp"], fields["input_length"], fields["output_length"], *blocks)
    )
    return request(milliseconds / 1000, num_tokens, output_tokens, tuple(ids))


def _whole(number: object) -> int:
    if not isinstance(number, int):
        raise TypeError(f"{number!r} is not a whole number")
    return number
