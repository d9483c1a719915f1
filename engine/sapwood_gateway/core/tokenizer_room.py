"""Whose tokenizers stay where all of them together would be too much.

Services share the room, and who has least is served first: the many of one service never take the place of another's
few. What is measured, bytes of files or of memory, is the caller's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sapwood_gateway.core.reading_turns import ServedModel
from sapwood_gateway.core.routes import ServiceKey


def held_by_service(sizes: Mapping[ServedModel, int]) -> Counter[ServiceKey]:
    """Return what the models of each service have together."""
    held: Counter[ServiceKey] = Counter()
    for model, size in sizes.items():
        held[model.service] += size
    return held


def leaving(sizes: Mapping[ServedModel, int], newcomer: ServedModel, most: int) -> frozenset[ServedModel]:
    """Return which of ``sizes`` are to go so that all others have at most ``most`` together.

    ``newcomer`` alone where its service would have as much as any other; else the largest of whoever has most.
    """
    staying = dict(sizes)
    while sum(staying.values()) > most:
        held = held_by_service(staying)
        greatest = max(held, key=held.__getitem__)
        if held[newcomer.service] == held[greatest]:
            return frozenset({newcomer})
        del staying[max((each for each in staying if each.service == greatest), key=staying.__getitem__)]
    return frozenset(sizes.keys() - staying.keys())
