"""What happened in a radix tree between two looks at it. Pure.

A node that a truncated listing leaves out may still be there, and one that it shows first may be old: of such nothing
is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from sapwood_tools.top.samples import Cache, CacheNode

ChangeKind = Literal["appeared", "split", "locked", "released", "evicted"]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that happened to one node."""

    kind: ChangeKind
    node: CacheNode
    """As it is, or was last."""


def changes(before: Cache, after: Cache) -> Iterator[Change]:
    """Yield what happened from one look to the next at the same engine, in the order of the listings.

    A node that came with users both appeared and was locked. ``split``: a node was put above another that was there.
    ``evicted``: it is gone, whatever the reason.
    """
    old = {node.serial: node for node in before.nodes}
    new = {node.serial: node for node in after.nodes}
    if not after.is_truncated:
        yield from (Change("evicted", node) for serial, node in old.items() if serial not in new)
    was_locked = {serial: node.lock_ref > 0 for serial, node in old.items()}
    split = _put_above(old, new)
    for serial, node in new.items():
        if serial in split:
            yield Change("split", node)
        elif serial not in old and before.is_truncated:
            continue
        elif serial not in old:
            yield Change("appeared", node)
        if was_locked.get(serial, split.get(serial, False)) != (node.lock_ref > 0):
            yield Change("locked" if node.lock_ref else "released", node)


def _put_above(old: Mapping[int, CacheNode], new: Mapping[int, CacheNode]) -> dict[int, bool]:
    """Return the new nodes that stand above an old one, and whether what they were split from was locked."""
    found: dict[int, bool] = {}
    for serial, former in old.items():
        above = new[serial].parent if serial in new else None
        while above is not None and above not in old:
            found[above] = found.get(above, False) or former.lock_ref > 0
            above = new[above].parent
    return found
