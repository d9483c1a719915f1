"""How engines name the blocks of a prompt: what the gateway must know of an engine to name them alike.

The hash of a block depends on the model's revision, the size of a page and the namespace that the request's own fields
make (`sapwood_contract.keys`). Two replicas with the same `Naming` give the same block the same name; the blocks of
two others have nothing in common.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sapwood_contract.http import EngineLoad, KvEvents
from sapwood_contract.keys import TOKEN_BYTES, chain, namespace_root
from sapwood_gateway.core.prefix_affinity import Prompt

MOST_BLOCKS_OF_PROMPT = 8_192
"""Hashed; where a longer prompt goes is decided by its beginning. With pages of 16 tokens it is 131,072 tokens."""


class Naming(NamedTuple):
    """What the names of an engine's blocks depend on, beyond the request."""

    model_revision: str
    block_tokens: int


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """What a replica says of its prefix cache."""

    naming: Naming
    capacity_blocks: int
    events: KvEvents | None
    """Where it tells of its blocks; None where it does not."""


def facts_of(said: EngineLoad) -> CacheFacts | None:
    """Return what a report says of the cache; None where that is not enough to name blocks, as before it is ready."""
    events, load = said.kv_events, said.load
    block_tokens = load.kv_page_tokens if events is None else events.page_size
    if not said.model_revision or block_tokens < 1:
        return None
    naming = Naming(said.model_revision, block_tokens)
    return CacheFacts(naming, max(0, load.kv_capacity_tokens // block_tokens), events)


@dataclass(frozen=True, slots=True)
class PromptSpace:
    """The fields of a request that keep its blocks apart from those of others, as the engine takes them."""

    extra_key: str | None = None
    cache_salt: str | None = None
    tenant: str | None = None
    """What the gateway tells the engine of who asks (`sapwood_contract.trust`)."""


def prompt_of(token_ids: Sequence[int], naming: Naming, space: PromptSpace, session: str | None) -> Prompt:
    """Return the prompt under the names of its blocks; ``token_ids`` are from 0 to 2**31 - 1."""
    # No adapter: engines keep none yet.
    root = namespace_root(naming.model_revision, None, space.extra_key, space.cache_salt, space.tenant)
    hashed = token_ids[: MOST_BLOCKS_OF_PROMPT * naming.block_tokens]
    blocks = chain(root, array("i", hashed).tobytes(), naming.block_tokens * TOKEN_BYTES)
    return Prompt(len(token_ids), blocks, session)
