"""How much each replica has been given of late, in tokens: what makes many caches of one service act as one.

A cache keeps a prefix for as long as it takes to compute a cache full of others. Where all replicas compute equally
much, that is the same time everywhere, and the service forgets what one cache of their sizes together would forget.
So "of late" is counted in work and not in time: all sums fade by half within about 0.7 caches full of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping


class RecentWork:
    """Fading sums of tokens, one a replica."""

    def __init__(self) -> None:
        self._tokens: dict[str, float] = {}
        self._capacities: dict[str, int] = {}

    def join(self, replica: str, capacity_tokens: int) -> None:
        """Count for ``replica`` from now on; it begins with what the others have on the average.

        With nothing it would be given everything until it had caught up.
        """
        if replica not in self._tokens:
            self._tokens[replica] = self.mean
            self._capacities[replica] = capacity_tokens

    def level(self, replica: str) -> None:
        """Let ``replica``, if it is known, begin anew with what the others have on the average."""
        if replica in self._tokens:
            del self._tokens[replica]
            self.join(replica, self._capacities.pop(replica))

    def leave(self, replica: str) -> None:
        """Forget ``replica``, if it is known."""
        self._tokens.pop(replica, None)
        self._capacities.pop(replica, None)

    def add(self, replica: str, num_tokens: float) -> None:
        """``replica`` was given ``num_tokens`` to compute; one that has left is passed over."""
        if replica not in self._tokens:
            return
        kept = max(0.0, 1 - num_tokens / max(1, sum(self._capacities.values())))
        for each in self._tokens:
            self._tokens[each] *= kept
        self._tokens[replica] += num_tokens

    @property
    def tokens(self) -> Mapping[str, float]:
        """The sums, by replica."""
        return self._tokens

    @property
    def mean(self) -> float:
        """Of all sums; 0 where there are none."""
        return sum(self._tokens.values()) / len(self._tokens) if self._tokens else 0.0

    @property
    def mean_capacity(self) -> float:
        """Tokens of a cache, on the average."""
        return sum(self._capacities.values()) / len(self._capacities) if self._capacities else 0.0
