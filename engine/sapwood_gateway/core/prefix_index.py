"""Which replicas hold which blocks, and how far each of them holds a prompt.

A block is one page of tokens under its chained hash (`sapwood_contract.keys`). Who holds it holds all blocks before it,
because caches give up the ends of prompts first; so a replica holds a prompt up to the last of its blocks there, which
is found by halving. What is known of a replica comes from its own events
(`core.block_feed`) or, without those, from what it was sent: both say `store`, `remove` and `clear`. A replica's
blocks are never more than its capacity; those used the longest time ago are forgotten first, as the engine does.

A replica is one bit. A block's holders are an integer, so that one look answers for all replicas.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

_SWEPT_PER_STORED = 2
"""Entries of cleared replicas that each stored block takes out: more than one, so that they get ever fewer."""


class _Slot:
    """One replica's bit and blocks; the blocks used last are at the end."""

    __slots__ = ("bit", "blocks", "capacity")

    def __init__(self, bit: int, capacity: int) -> None:
        self.bit = bit
        self.capacity = capacity
        self.blocks: OrderedDict[bytes, None] = OrderedDict()


class PrefixIndex:
    """Blocks of every replica that has joined; a replica that has not is not known and cannot be asked about."""

    def __init__(self) -> None:
        self._holders: dict[bytes, int] = {}
        """Block -> bits of its holders; never 0."""
        self._slots: dict[str, _Slot] = {}
        self._replicas: dict[int, str] = {}
        """Bit -> replica."""
        self._live = 0
        """The bits of all replicas. Others may still stand in `_holders`, until they are swept."""
        self._retired: deque[_Slot] = deque()
        self._free_bits: list[int] = []
        self._num_bits = 0

    def join(self, replica: str, capacity_blocks: int) -> None:
        """Know ``replica``, which holds nothing yet and at most ``capacity_blocks``. Joining again changes nothing."""
        if replica not in self._slots:
            self._open(replica, capacity_blocks)

    def leave(self, replica: str) -> None:
        """Forget ``replica``, if it is known. O(1)."""
        if replica in self._slots:
            self._retire(replica)

    def clear(self, replica: str) -> None:
        """``replica`` holds nothing any more. O(1), however much it held."""
        slot = self._slots[replica]
        if slot.blocks:
            self._retire(replica)
            self._open(replica, slot.capacity)

    def store(self, replica: str, blocks: Sequence[bytes]) -> None:
        """``replica`` holds ``blocks``, in the order of their prompt, and has just used them."""
        slot = self._slots[replica]
        holders, bit, mine = self._holders, slot.bit, slot.blocks
        # From the last one on: where there is no room the end of a prompt goes before its beginning.
        for block in reversed(blocks[: slot.capacity]):
            if block in mine:
                mine.move_to_end(block)
            else:
                mine[block] = None
                holders[block] = holders.get(block, 0) | bit
        while len(mine) > slot.capacity:
            self._drop(mine.popitem(last=False)[0], bit)
        self._sweep(_SWEPT_PER_STORED * len(blocks))

    def remove(self, replica: str, blocks: Iterable[bytes]) -> None:
        """``replica`` holds ``blocks`` no more; those that it was not known to hold are passed over."""
        slot = self._slots[replica]
        for block in blocks:
            if block in slot.blocks:
                del slot.blocks[block]
                self._drop(block, slot.bit)

    def matched(self, chain: Sequence[bytes]) -> dict[str, int]:
        """Return how many blocks of ``chain``, from its beginning, each replica holds; those with none are absent."""
        found: dict[str, int] = {}
        holders, live, length = self._holders, self._live, len(chain)
        depth = 0
        while live:
            end = length  # between `depth` and `end` is the first block that not all of them hold
            while depth < end:
                middle = (depth + end) // 2
                if holders.get(chain[middle], 0) & live == live:
                    depth = middle + 1
                else:
                    end = middle
            still = live & holders.get(chain[depth], 0) if depth < length else 0
            self._note(found, live ^ still, depth)
            live = still
        return found

    def num_blocks(self, replica: str) -> int:
        """Return how many blocks ``replica`` is known to hold."""
        return len(self._slots[replica].blocks)

    @property
    def num_entries(self) -> int:
        """Blocks in memory, each once however many hold it; those of cleared replicas that wait to be swept too."""
        return len(self._holders)

    def _note(self, found: dict[str, int], bits: int, depth: int) -> None:
        while depth and bits:
            bit = bits & -bits
            found[self._replicas[bit]] = depth
            bits ^= bit

    def _open(self, replica: str, capacity: int) -> None:
        if self._free_bits:
            bit = self._free_bits.pop()
        else:
            bit = 1 << self._num_bits
            self._num_bits += 1
        self._slots[replica] = _Slot(bit, capacity)
        self._replicas[bit] = replica
        self._live |= bit

    def _retire(self, replica: str) -> None:
        slot = self._slots.pop(replica)
        del self._replicas[slot.bit]
        self._live ^= slot.bit
        self._retired.append(slot)

    def _sweep(self, num_blocks: int) -> None:
        while self._retired and num_blocks > 0:
            slot = self._retired[0]
            while slot.blocks and num_blocks > 0:
                self._drop(slot.blocks.popitem()[0], slot.bit)
                num_blocks -= 1
            if not slot.blocks:
                self._retired.popleft()
                self._free_bits.append(slot.bit)

    def _drop(self, block: bytes, bit: int) -> None:
        left = self._holders[block] ^ bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]
