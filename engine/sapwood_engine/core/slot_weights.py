"""Weights in a row, and what all behind one of them weigh together: a Fenwick tree, O(log n) either way.

(Fenwick, "A new data structure for cumulative frequency tables", 1994.)
"""

from __future__ import annotations

from array import array


class SlotWeights:
    """``num_slots`` weights, all 0 at first. Slots are numbered from 0 on."""

    __slots__ = ("_sums", "num_slots", "total")

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.total = 0.0
        self._sums = array("d", bytes(8 * (num_slots + 1)))
        """Entry i holds the weights of the last ``i & -i`` of the first i slots."""

    def add(self, slot: int, weight: float) -> None:
        """Add ``weight``, which may be negative, to ``slot``."""
        sums, num_slots = self._sums, self.num_slots
        self.total += weight
        at = slot + 1
        while at <= num_slots:
            sums[at] += weight
            at += at & -at

    def behind(self, slot: int) -> float:
        """Return the weight of all slots behind ``slot``."""
        sums = self._sums
        at = slot + 1
        weight = self.total
        while at:
            weight -= sums[at]
            at &= at - 1
        return weight
