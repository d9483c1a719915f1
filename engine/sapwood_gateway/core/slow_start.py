"""How a replica that has just become ready comes to its share of the requests: little by little.

Its cache is cold and its first steps are slow, while its load is 0: by load alone it would get everything that comes.
So for a while it counts as a part of a replica, ``share`` from `LEAST_SHARE` to 1. Among n others it takes
share / (n + share) of the turns, and whatever it has to do weighs as if it were 1 / share times as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from math import ceil, sqrt

from sapwood_gateway.core.prefix_affinity import Load

SLOW_START_SECONDS = 30.0
"""As long as a line of prompts may be before it counts in full (`affinity.Weights`): what a newcomer is given at once
in its first seconds is computed by the end. By then it has reported its load some thirty times."""
LEAST_SHARE = 0.1
"""From the first request on: with nothing it would not become any warmer."""
_GOLDEN_RATIO = (sqrt(5) - 1) / 2
"""The multiples of it, without their whole part, are spread evenly over any stretch of turns."""


class Newcomers:
    """Which replicas start slowly; mutable, for one thread.

    One that is ready for the first time while another of its service has been so before, and is.
    """

    def __init__(self) -> None:
        self._were_ready: Set[str] = frozenset()
        """Ids of replicas that have been ready once."""
        self._new: Set[str] = frozenset()
        """Ids of those that could not be given a request yet."""
        self._began: dict[str, float] = {}
        """Id -> when the first request could have gone to it."""

    @property
    def are_none(self) -> bool:
        """Whether nobody starts slowly."""
        return not self._new and not self._began

    def update(self, ready: Iterable[Set[str]], *, known: Set[str], are_all_old: bool) -> None:
        """Take in which replicas of each service are ready, and which there are at all.

        ``are_all_old``: whoever is ready has been so before, as far as can be known.
        """
        new, were_ready = self._new, self._were_ready
        for ids in ready:
            if not are_all_old and not ids.isdisjoint(self._were_ready):
                new |= ids - self._were_ready
            were_ready |= ids
        self._were_ready, self._new = were_ready & known, new & known
        self._began = {id_: since for id_, since in self._began.items() if id_ in known}

    def begin(self, fit: Set[str], now: float) -> Set[str]:
        """A request may go to any of ``fit``: return those of which it is the first one."""
        beginning = self._new & fit
        self._new -= beginning
        self._began |= dict.fromkeys(beginning, now)
        return beginning

    def shares(self, now: float) -> Mapping[str, float]:
        """Return as what part of a replica each one counts that has begun, and forget those that count in full."""
        shares = {id_: share_after(now - since) for id_, since in self._began.items()}
        self._began = {id_: since for id_, since in self._began.items() if shares[id_] < 1}
        return {id_: share for id_, share in shares.items() if share < 1}

    def check_invariants(self, known: Set[str]) -> list[str]:
        """Return what is wrong inside, for tests; empty where nothing is."""
        faults = [f"{id_} is gone but starts" for id_ in self._new | self._began.keys() if id_ not in known]
        return faults + [f"{id_} begins twice" for id_ in self._new & self._began.keys()]


def share_after(seconds: float) -> float:
    """Return as what part of a replica one counts so long after the first request that could go to it."""
    return min(1.0, max(LEAST_SHARE, seconds / SLOW_START_SECONDS))


def whose_turn(shares: Sequence[float], num_others: int, turn: int) -> int:
    """Return the index of the newcomer that a request goes to, or ``len(shares)`` for one of ``num_others``.

    ``shares``: of the newcomers, in an order that stays. ``turn`` rises with every request.
    """
    at = turn * _GOLDEN_RATIO % 1.0 * (sum(shares) + num_others)
    for index, share in enumerate(shares):
        if at < share:
            return index
        at -= share
    return len(shares)


def weighed(load: Load, share: float) -> Load:
    """Return what ``load`` counts on a replica that is ``share`` of one."""
    return Load(load.replica, ceil(load.num_requests / share), ceil(load.waiting_tokens / share))
