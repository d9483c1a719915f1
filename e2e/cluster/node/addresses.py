"""Which address of its node a pod gets. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST, LAST = 10, 250
"""Pods have these numbers in 10.77.N.0/24; .1 is the node itself."""


class NoAddressError(Exception):
    """Every address of the node is taken."""


@dataclass(slots=True)
class AddressPool:
    """The pod addresses of node ``number``, given in turn: one that was given back comes last, so that a connection
    to a pod that has gone does not reach another one."""

    number: int
    _free: list[int] = field(default_factory=lambda: list(range(FIRST, LAST + 1)))

    def take(self) -> str:
        """Return a free address; `NoAddressError` if there is none."""
        if not self._free:
            raise NoAddressError(f"node {self.number} has given {LAST - FIRST + 1} pods an address and has no other")
        return f"10.77.{self.number}.{self._free.pop(0)}"

    def claim(self, address: str) -> bool:
        """Take one ``address`` (an earlier agent gave it to a pod that still is); whether it was free and ours."""
        prefix, _, last = address.rpartition(".")
        if prefix != f"10.77.{self.number}" or int(last) not in self._free:
            return False
        self._free.remove(int(last))
        return True

    def give_back(self, address: str) -> None:
        number = int(address.rpartition(".")[2])
        assert number not in self._free, f"{address} is given back twice"
        self._free.append(number)
