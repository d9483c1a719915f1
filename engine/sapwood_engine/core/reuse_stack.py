"""How much has been used since a sequence was used last: LRU stack distances, of evicted pages too.

Mattson's stack (1970) has everything ever used, the latest at its top, and what an LRU cache of N units holds are the
N topmost. Here a sequence is used whole and its beginning counts as used last, so one use leaves one run of units on
the stack, and what later uses take away from it is always its beginning::

    top  [ use 9:  0 … 11 ] [ use 8:  3 … 7 ] [ use 5:  2 … 40 ]  bottom      its units 0 and 1 are in use 9 or 8 now

So the stack is kept as runs, in a Fenwick tree over their weights, and the distance of a unit is the weight of all
later runs and its place in its own. Where a sequence meets which run is learnt from its *marks*: units known by their
print, a hash of everything from the sequence's beginning on (SHARDS, FAST '15, samples by such hashes). Marked exactly
are the first unit, the ends of what was used and the places where the live tree found sequences to part: nodes with
many children, for who goes that way again. Of the rest a share is sampled. Up to the deepest exact mark that is known
a sequence counts unit by unit; each sampled mark behind it stands for ``1 / sample_rate`` units, which is right on
average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from struct import iter_unpack
from zlib import crc32

from sapwood_contract.keys import namespace_root
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.slot_weights import SlotWeights

Mark = tuple[int, int]
"""A unit's place in its sequence, and its print."""
_PRINTS = 2**32
_ROUNDING_UNITS = 1e-3


@dataclass(frozen=True, slots=True)
class Reused:
    """Units of a sequence that lie together on the stack; or, from one mark, an estimate of how many do."""

    first: int
    """Their place in the sequence."""
    num_units: float
    end_bytes: int
    """Of the key, where what is there ends: within the last unit where only its beginning is there."""
    distance: float
    """Units an LRU cache must have to hold the first of them still."""
    is_estimate: bool
    """True: all are as far as the first. False: each is one further than the one before."""
    is_running: bool
    """Whoever used them last has not ended."""


class Trail:
    """What is kept of a sequence between its first use and its end."""

    __slots__ = ("marks", "namespace", "num_units", "print", "tail", "use")

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.use: Use | None = None
        """Its latest one."""
        self.restart()

    def restart(self) -> None:
        """Look at nothing yet."""
        self.marks: list[Mark] = []
        self.num_units = 0
        """So many whole units are looked at."""
        self.print = int.from_bytes(_root(self.namespace)[:4], "little")
        """Of the last of them; of the namespace where there is none."""
        self.tail = b""
        """What is behind them. It is a unit too, whose mark is the last one. Marks of earlier tails stay: whoever ends
        there again finds what has come of that unit.
        """


class Use:
    """A run on the stack: what nobody has used since, of the sequence that was used then."""

    __slots__ = ("begin", "end", "is_running", "namespace", "num_bytes", "num_whole", "prints", "slot", "weight")

    def __init__(self, trail: Trail, *, num_bytes: int, is_running: bool) -> None:
        self.namespace = trail.namespace
        self.prints = [each for _, each in trail.marks]
        """Of its marks. The tail's is the last one."""
        self.begin = 0
        """Its first unit that nobody has used since, as far as marks tell."""
        self.num_whole = trail.num_units
        """Units of its sequence but for the tail."""
        self.end = self.num_whole + bool(trail.tail)
        self.num_bytes = num_bytes
        """Of its key, tail included."""
        self.weight = float(self.end)
        """Units it still has."""
        self.is_running = is_running
        self.slot = 0


_Known = tuple[int, Use, bool, bool]
"""A mark that is on the stack: its place, who holds it, whether every unit up to it is known to be there, and whether
its unit is used itself (else a copy of its beginning is).
"""


class ReuseStack:
    """The stack of one cache. Bounded: the oldest uses are forgotten beyond ``most_marks`` marks.

    ``unit_bytes``: of the keys, in one unit; ``keeps_tails``: whether a unit that a sequence fills in part is kept.
    A mark takes some 200 bytes, its share of a use included.
    """

    def __init__(self, *, unit_bytes: int, sample_rate: float, most_marks: int, keeps_tails: bool = True) -> None:
        self.sample_rate = sample_rate
        self._unit_format = f"{unit_bytes}s"
        self._unit_bytes = unit_bytes
        self._below = round(sample_rate * _PRINTS)
        """Units with smaller prints are sampled."""
        self._most_marks = most_marks
        self._keeps_tails = keeps_tails
        self._holders: dict[int, Use] = {}
        """Print of a mark -> who used it last."""
        self._exact: set[int] = set()
        """Prints of marks that were not, or not only, chosen by their print."""
        self._uses: dict[int, Use] = {}
        """Slot -> use, the oldest first."""
        self._weights = SlotWeights(most_marks)
        self._next_slot = 0

    @property
    def num_marks(self) -> int:
        """Of all runs."""
        return len(self._holders)

    @property
    def num_units(self) -> float:
        """Units on the stack."""
        return self._weights.total

    def check_invariants(self) -> list[str]:
        """Return each fault in a sentence; an empty list means healthy. O(marks)."""
        faults = []
        weight = sum(use.weight for use in self._uses.values())
        if abs(weight - self.num_units) > _ROUNDING_UNITS:
            faults.append(f"the runs weigh {weight} units and the stack {self.num_units}")
        if any(self._uses.get(use.slot) is not use for use in self._holders.values()):
            faults.append("a mark is held by a run that is not on the stack")
        if num_lost := len(self._exact - self._holders.keys()):
            faults.append(f"{num_lost} exact marks are on no run")
        if self.num_marks > self._most_marks and len(self._uses) > 1:
            faults.append(f"{self.num_marks} marks where {self._most_marks} are allowed")
        return faults

    # --- marks

    def follow(self, trail: Trail, key: bytes, *, exact: Sequence[int] = ()) -> bool:
        """Let ``trail`` go on to the end of ``key``, with marks where ``exact`` says, at the end, and by their prints.

        False where ``key`` is shorter than the trail, which begins anew then. O(units beyond the trail), some 0.2 µs
        each.
        """
        num_units = len(key) // self._unit_bytes
        is_longer = num_units >= trail.num_units
        if not is_longer:
            trail.restart()
        begin = trail.num_units
        at = trail.print
        rest = key[begin * self._unit_bytes : num_units * self._unit_bytes]
        prints = [at := crc32(unit, at) for (unit,) in iter_unpack(self._unit_format, rest)]
        holders, below = self._holders, self._below
        marks = {i: each for i, each in enumerate(prints, begin) if each < below or each in holders}
        for index in (*exact, num_units - 1):
            if begin <= index < num_units:
                marks[index] = prints[index - begin]
                self._exact.add(prints[index - begin])
        trail.marks += sorted(marks.items())
        trail.num_units, trail.print = num_units, at
        trail.tail = key[num_units * self._unit_bytes :] if self._keeps_tails else b""
        if trail.tail:
            trail.marks.append((num_units, _tail_print(trail.tail, at)))
            self._exact.add(trail.marks[-1][1])
        return is_longer

    # --- using

    def use(self, trail: Trail, key: bytes, *, num_found: int = 0, is_running: bool = False) -> list[Reused]:
        """Move the sequence of ``trail``, whose key is ``key``, to the top; return what of it was there, and where.

        ``num_found`` units were found in the live cache. O(marks), and O(log) for every run met.
        """
        known = self._known(trail, num_found)
        found = self._measure(known, trail, key)
        for index, holder, _, is_used in known:
            holder.begin = max(holder.begin, index + is_used)
        if trail.marks:
            self._push(trail, is_running=is_running)
        for holder in {holder.slot: holder for _, holder, _, _ in known}.values():
            if holder.begin >= holder.num_whole:
                self._pass(holder, trail, key)
        while len(self._holders) > self._most_marks and len(self._uses) > 1:
            self._forget(next(iter(self._uses.values())))
        return found

    def _known(self, trail: Trail, num_found: int) -> list[_Known]:
        """Return the marks that are on the stack, in order."""
        holders, exact, below = self._holders, self._exact, self._below
        known = []
        for index, each in trail.marks:
            holder = holders.get(each)
            if holder is not None:
                is_used = each < _PRINTS or each == holder.prints[-1] or holder is trail.use
                known.append((index, holder, each in exact, is_used))
            elif each < below:
                break  # What lies behind a unit was never used without it.
        at = next((at for at, (index, *_) in enumerate(known) if index >= num_found - 1), len(known))
        if num_found and known and (at == len(known) or known[at][0] > num_found - 1):
            # Where the live tree ended is sure, too. The run is that of the next mark, or goes on beyond the last one.
            known.insert(at, (num_found - 1, known[min(at, len(known) - 1)][1], True, True))
        elif num_found and known:
            known[at] = (*known[at][:2], True, known[at][3])
        return known

    def _measure(self, known: list[_Known], trail: Trail, key: bytes) -> list[Reused]:
        """Return where on the stack the units of ``known`` lie, and take their weight from it."""
        sure_end = max((index + 1 for index, _, is_sure, _ in known if is_sure), default=0)
        found = []
        taken = []
        begin = 0
        for holder, marks in groupby(known, key=lambda mark: mark[1]):
            group = [*marks]
            places = [index for index, _, _, _ in group]
            behind = self._weights.behind(holder.slot)
            if places[0] < sure_end:
                end = min(places[-1] + 1, sure_end)
                distance = behind + max(1, begin + 1 - holder.begin)
                if end == sure_end == holder.num_whole and self._goes_on(holder, trail, key):
                    end = holder.end
                has_tail = end == holder.end > holder.num_whole
                end_bytes = holder.num_bytes if has_tail else end * self._unit_bytes
                found.append(Reused(begin, end - begin, end_bytes, distance, False, holder.is_running))
                num_copied = not group[-1][3]
                taken.append((holder, float(max(0, min(end, holder.end) - begin - num_copied))))
                begin = end
            for index in places:
                if index >= sure_end:
                    distance = behind + max(1, index + 1 - holder.begin)
                    end_bytes = (index + 1) * self._unit_bytes
                    found.append(Reused(index, 1 / self.sample_rate, end_bytes, distance, True, holder.is_running))
                    taken.append((holder, 1 / self.sample_rate))
        for holder, num_units in taken:
            holder.weight -= num_units
            self._weights.add(holder.slot, -num_units)
        return found

    def _push(self, trail: Trail, *, is_running: bool) -> None:
        num_bytes = trail.num_units * self._unit_bytes + len(trail.tail)
        use = Use(trail, num_bytes=num_bytes, is_running=is_running)
        if self._next_slot == self._weights.num_slots:
            self._compact()
        use.slot = self._next_slot
        self._next_slot += 1
        self._uses[use.slot] = use
        self._weights.add(use.slot, use.weight)
        self._holders.update(dict.fromkeys(use.prints, use))
        trail.use = use

    def _pass(self, use: Use, trail: Trail, key: bytes) -> None:
        """All whole units of ``use`` have been used again. Its tail goes with them if ``key`` goes on as it does."""
        if self._uses.get(use.slot) is not use:
            return
        if use.begin >= use.end or self._goes_on(use, trail, key):
            self._forget(use)
            return
        tail = use.prints.pop()
        self._forget_marks(use)
        use.prints = [tail]
        self._weights.add(use.slot, 1 - use.weight)
        use.weight = 1.0

    def _goes_on(self, use: Use, trail: Trail, key: bytes) -> bool:
        """Whether ``key`` goes on as the tail of ``use`` does behind the last whole unit."""
        at = use.num_whole
        before = next((each for index, each in trail.marks if index == at - 1 and each < _PRINTS), None)
        if before is None or use.end == at:
            return False
        return _tail_print(key[at * self._unit_bytes : use.num_bytes], before) == use.prints[-1]

    # --- forgetting

    def forget(self, namespace: Namespace | None) -> None:
        """Forget all, or what one namespace has used."""
        for use in list(self._uses.values()):
            if namespace in (None, use.namespace):
                self._forget(use)

    def retract(self, use: Use) -> None:
        """What is left of ``use`` was not kept after all."""
        if self._uses.get(use.slot) is use:
            self._forget(use)

    def _forget(self, use: Use) -> None:
        self._forget_marks(use)
        self._drop(use)

    def _forget_marks(self, use: Use) -> None:
        for each in use.prints:
            if self._holders.get(each) is use:
                del self._holders[each]
                self._exact.discard(each)
        use.prints = []

    def _drop(self, use: Use) -> None:
        """Take a run off the stack, and with it what was estimated wrongly of its weight."""
        del self._uses[use.slot]
        self._weights.add(use.slot, -use.weight)

    def _compact(self) -> None:
        """Number the runs anew; forget the oldest if more than half of the slots would be taken at once."""
        for use in list(islice(self._uses.values(), max(0, len(self._uses) - self._weights.num_slots // 2))):
            self._forget(use)
        self._weights = SlotWeights(self._weights.num_slots)
        uses = list(self._uses.values())
        self._uses = dict(enumerate(uses))
        for slot, use in enumerate(uses):
            use.slot = slot
            self._weights.add(slot, use.weight)
        self._next_slot = len(uses)


def _root(namespace: Namespace) -> bytes:
    return namespace_root(
        namespace.model_revision,
        namespace.adapter_id,
        namespace.extra_key,
        namespace.tenant_salt,
        namespace.tenant,
    )


def _tail_print(tail: bytes, before: int) -> int:
    """Return the print of a tail: beyond those of whole units, so that it is never among the sampled ones."""
    return _PRINTS + crc32(tail, before)
