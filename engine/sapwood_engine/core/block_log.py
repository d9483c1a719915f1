"""What enters and leaves the tree, in order, for whoever keeps an index of it from afar.

A block is a whole page under its chained hash (`sapwood_contract.keys`); pages filled in part are no blocks. Whoever
applies every event in order, beginning from nothing, has exactly the blocks that a match could find.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sapwood_contract.keys import chain, namespace_root
from sapwood_engine.core.keys import TokenKey
from sapwood_engine.core.radix_node import Node, Root
from sapwood_engine.core.request import Namespace


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks that follow each other can be matched now."""

    namespace: Namespace
    parent: bytes | None
    """Hash of the block before the first; None where that begins its sequence."""
    hashes: tuple[bytes, ...]
    key: TokenKey
    """Of these blocks alone."""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks cannot be matched any more."""

    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BlocksCleared:
    """Nothing can be matched any more."""


BlockEvent = BlocksStored | BlocksRemoved | BlocksCleared


class BlockLog:
    """Hashes what enters, and keeps the events until somebody takes them."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._events: list[BlockEvent] = []

    def enter(self, node: Node) -> None:
        """``node`` was attached: hash its pages."""
        parent = node.parent
        assert parent is not None, "hashing a root"
        begins = isinstance(parent, Root)
        before = root_hash(parent) if isinstance(parent, Root) else parent.hashes[-1]
        node.hashes = tuple(chain(before, node.edge, self._page_bytes))
        if node.hashes:
            self._events.append(BlocksStored(node.root.namespace, None if begins else before, node.hashes, node.edge))

    def leave(self, node: Node, *, kept: int = 0) -> None:
        """All but the first ``kept`` pages of ``node`` are about to leave."""
        gone = node.hashes[kept : node.num_pages]
        if gone and not node.root.flushed:
            self._events.append(BlocksRemoved(gone))

    def clear(self) -> None:
        """Everything has left, so what is not taken yet need not be told."""
        self._events = [BlocksCleared()]

    def take(self) -> list[BlockEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events


def stored_blocks(nodes: Iterator[Node]) -> list[BlockEvent]:
    """Return events from which all blocks of ``nodes``, parents before children, can be built anew."""
    events: list[BlockEvent] = []
    for node in nodes:
        parent = node.parent
        assert parent is not None, "a node below its root has a parent"
        hashes = node.hashes[: node.num_pages]
        if hashes:
            before = None if isinstance(parent, Root) else parent.hashes[-1]
            events.append(BlocksStored(node.root.namespace, before, hashes, node.edge[: node.num_bytes]))
    return events


def root_hash(root: Root) -> bytes:
    """Return what the first block below ``root`` follows on."""
    space = root.namespace
    return namespace_root(space.model_revision, space.adapter_id, space.extra_key, space.tenant_salt, space.tenant)
