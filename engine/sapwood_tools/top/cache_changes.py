"""What happened in a radix tree between two looks at it. Pure.

A node that a truncated listing leaves out may still be there, and one that it shows first may be old: of such nothing
is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from sapwood_tools.top.samples import Cache, CacheNode

ChangeKind = Literal["appeared", "split", "locked", "unlocked", "evicted"]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that happened to one node."""

    kind: ChangeKind
    node: CacheNode
    """As it is, or was last; of an end that is gone with the tokens of that."""
    is_whole: bool = True
    """False where only its end went."""


def changes(before: Cache, after: Cache) -> Iterator[Change]:
    """Yield what happened from one look to the next at the same engine, in the order of the listings.

    A node that came with users both appeared and was locked. ``split``: a node was put above another that was there.
    ``evicted``: it is gone, whatever the reason, or its end is. The page of the console tells the same (``diff.js``).
    """
    old = {node.serial: node for node in before.nodes}
    new = {node.serial: node for node in after.nodes}
    put_above = _put_above(old, new)
    split = {node.serial: former.lock_ref > 0 for former in old.values() for node in put_above[former.serial]}
    for serial, node in new.items():
        former = old.get(serial)
        if former is not None:
            num_lost = former.num_tokens - node.num_tokens - sum(upper.num_tokens for upper in put_above[serial])
            if num_lost > 0:
                yield Change("evicted", replace(node, num_tokens=num_lost), is_whole=False)
        elif serial in split:
            yield Change("split", node)
        elif before.is_truncated:
            continue
        else:
            yield Change("appeared", node)
        was_locked = former.lock_ref > 0 if former is not None else split.get(serial, False)
        if was_locked != (node.lock_ref > 0):
            yield Change("locked" if node.lock_ref else "unlocked", node)
    if not after.is_truncated:
        yield from (Change("evicted", node) for serial, node in old.items() if serial not in new)


def _put_above(old: Mapping[int, CacheNode], new: Mapping[int, CacheNode]) -> dict[int, list[CacheNode]]:
    """Return for each old node the new ones that were split off above it."""
    found: dict[int, list[CacheNode]] = {serial: [] for serial in old}
    for serial, uppers in found.items():
        above = new[serial].parent if serial in new else None
        while above is not None and above not in old:
            uppers.append(new[above])
            above = new[above].parent
    return found
