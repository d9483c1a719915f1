"""What routing is measured against: one cache of all replicas' sizes together, and one that never forgets.

Simulated directly, block by block, with nothing of the engine's own code.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from sapwood_tools.replay.trace import BLOCK_TOKENS, TraceRequest


class OneCache:
    """Least recently used blocks go first, of one prompt the last ones; without a capacity none goes."""

    def __init__(self, capacity_blocks: int | None) -> None:
        self._capacity = capacity_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def serve(self, blocks: Sequence[int]) -> int:
        """Return how many of ``blocks``, from the first on, are there; then all of them are."""
        known = self._blocks
        num_found = next((at for at, block in enumerate(blocks) if block not in known), len(blocks))
        for block in reversed(blocks):
            known[block] = None
            known.move_to_end(block)
        while self._capacity is not None and len(known) > self._capacity:
            known.popitem(last=False)
        return num_found


def cached_tokens(requests: Iterable[TraceRequest], capacity_blocks: int | None) -> int:
    """Return the prompt tokens that the cache saves, the last one of a prompt never among them."""
    cache = OneCache(capacity_blocks)
    return sum(min(cache.serve(request.blocks) * BLOCK_TOKENS, request.prompt.num_tokens - 1) for request in requests)
