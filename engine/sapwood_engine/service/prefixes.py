"""What an engine's cache holds that is worth having elsewhere, and what it is told to compute of what others held.

The first is asked of the worker in portions and chosen here.

The worker must not stand still for it, nor this process's streams: portions are short, and sorting them is done beside
the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, Protocol

from sapwood_contract.http import (
    MAX_PREFIX_BLOCKS,
    CachedNode,
    CachedNodes,
    EngineState,
    HotPrefix,
    HotPrefixes,
    WarmProgress,
)
from sapwood_engine.core.hot_prefixes import HotPath, SurveyedNode, nodes_of_most_worth, paths_of_most_worth
from sapwood_engine.core.keys import token_key
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.warming import WarmPrefix
from sapwood_engine.errors import Draining
from sapwood_engine.service.warm_up import WarmUp

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 5


class Asked(Protocol):
    """Who asks the worker; `client.EngineClient` does."""

    model_revision: str
    capacity: Capacity | None
    warm_up: WarmUp

    @property
    def state(self) -> EngineState: ...

    def become_ready(self) -> None:
        """Look whether it may be ready now."""
        ...

    async def admin(self, action: Literal["survey", "paths", "warm"], **arguments: Any) -> dict[str, Any]:
        """Return the worker's answer; `Loading` while it loads, `WorkerDied`."""
        ...


class Prefixes:
    """Of one engine."""

    def __init__(self, engine: Asked) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()
        """The worker keeps one walk at a time."""

    async def nodes(self) -> CachedNodes:
        """Return the nodes of most worth; raises as `Asked.admin` does."""
        async with self._turn:
            nodes = await self._survey(has_names=True)
        chosen = await asyncio.to_thread(_cached_nodes, nodes)
        capacity = self._engine.capacity
        assert capacity is not None, "the worker has answered, so it is loaded"
        return CachedNodes(self._engine.model_revision, capacity.page_size, chosen, len(chosen) == len(nodes))

    async def hot(self, *, max_prefixes: int, max_tokens: int) -> HotPrefixes:
        """Return at most ``max_prefixes`` beginnings of prompts of at most ``max_tokens`` tokens together.

        Those of most worth first; raises as `Asked.admin` does.
        """
        async with self._turn:
            nodes = await self._survey(has_names=False)
            paths = await asyncio.to_thread(paths_of_most_worth, nodes, max_paths=max_prefixes, max_tokens=max_tokens)
            answer = await self._engine.admin("paths", numbers=[path.number for path in paths])
        prefixes = tuple(_hot_prefix(path, *told) for path, told in zip(paths, answer["paths"], strict=True))
        return HotPrefixes(self._engine.model_revision, prefixes)

    async def warm(self, prefixes: Sequence[WarmPrefix], *, is_last: bool) -> WarmProgress:
        """Have ``prefixes``, of this model's revision, computed while nobody else has work.

        ``is_last``: no other call will come. Raises `Draining`, and as `Asked.admin` does.
        """
        engine = self._engine
        if engine.state == "draining":
            raise Draining(retry_after_seconds=_RETRY_SECONDS)
        told = [(asdict(each.namespace), token_key(each.token_ids), each.worth_tokens, each.parts) for each in prefixes]
        await engine.admin("warm", prefixes=told)
        _log.info("prefixes to compute", extra={"num_prefixes": len(prefixes), "is_last": is_last})
        engine.warm_up.called(is_last=is_last)
        engine.become_ready()
        return self.progress()

    def progress(self) -> WarmProgress:
        """Return how far the engine is with what it was told to compute."""
        counts = self._engine.warm_up.counts
        return WarmProgress(self._engine.state, counts.num_waiting, counts.num_done, counts.num_dropped)

    async def _survey(self, *, has_names: bool) -> list[SurveyedNode]:
        nodes: list[SurveyedNode] = []
        is_done = False
        while not is_done:
            answer = await self._engine.admin("survey", is_first=not nodes, has_names=has_names)
            nodes += [SurveyedNode(*fields) for fields in answer["nodes"]]
            is_done = answer["is_done"]
        return nodes


def _cached_nodes(nodes: Sequence[SurveyedNode]) -> tuple[CachedNode, ...]:
    chosen = nodes_of_most_worth(nodes, max_blocks=MAX_PREFIX_BLOCKS)
    return tuple(CachedNode(b64encode(node.names).decode(), node.num_tokens, node.worth_tokens) for node in chosen)


def _hot_prefix(path: HotPath, namespace: dict[str, str | None], key: bytes) -> HotPrefix:
    return HotPrefix(
        tuple(array("i", key)),
        path.worth_tokens,
        path.parts,
        adapter=namespace["adapter_id"],
        extra_key=namespace["extra_key"],
        cache_salt=namespace["tenant_salt"],
        tenant=namespace["tenant"],
    )
