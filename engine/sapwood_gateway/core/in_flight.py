"""Blocks that replicas are about to hold: those of prompts that were sent and are not computed yet.

An engine tells of a block once it is computed, which may be seconds after its prompt was sent. Prompts that begin
alike and come meanwhile would look new, and be computed on one replica each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sapwood_gateway.core.prefix_index import PrefixIndex

_UNBOUNDED = 2**63
"""Blocks; what is under way is bounded by the requests that the gateway takes."""


class InFlight:
    """For each replica the blocks of prompts under way, as many times as they are under way."""

    def __init__(self) -> None:
        self._index = PrefixIndex()
        self._counts: dict[str, Counter[bytes]] = {}

    def join(self, replica: str) -> None:
        """Know ``replica``, which has nothing under way. Joining again changes nothing."""
        self._index.join(replica, _UNBOUNDED)
        self._counts.setdefault(replica, Counter())

    def __contains__(self, replica: str) -> bool:
        """Whether ``replica`` is known."""
        return replica in self._counts

    def leave(self, replica: str) -> None:
        """Forget ``replica``, if it is known."""
        self._index.leave(replica)
        self._counts.pop(replica, None)

    def begin(self, replica: str, chain: Sequence[bytes]) -> None:
        """A prompt was sent to ``replica``, which is known."""
        self._counts[replica].update(chain)
        self._index.store(replica, chain)

    def end(self, replica: str, chain: Sequence[bytes]) -> None:
        """A prompt that `begin` was told of is computed, or never will be; a replica that has left is passed over."""
        counts = self._counts.get(replica, Counter())
        gone = []
        for block in chain:
            counts[block] -= 1
            if counts[block] <= 0:
                del counts[block]
                gone.append(block)
        if replica in self:
            self._index.remove(replica, gone)

    def matched(self, chain: Sequence[bytes]) -> dict[str, int]:
        """Return how many blocks of ``chain``, from its beginning, are under way to each replica; none: absent."""
        return self._index.matched(chain)
