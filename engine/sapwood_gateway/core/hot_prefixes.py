"""Which beginnings many prompts have in common: those that prompts part at again and again.

A prompt's last known block is where it parts from those before it. For the turns of one conversation that is another
block each time; for prompts with one system prompt it is the last block of that one.
"""

from __future__ import annotations

from collections import OrderedDict

MOST_PREFIXES = 4_096
"""That are counted: those that prompts parted at last."""
MANY_PROMPTS = 8
"""That part at one block, for what ends there to be hot."""


class HotPrefixes:
    """How many prompts parted at which block."""

    def __init__(self, most: int = MOST_PREFIXES) -> None:
        self._most = most
        self._prompts: OrderedDict[bytes, int] = OrderedDict()

    def note(self, block: bytes) -> None:
        """A prompt was known up to ``block``."""
        self._prompts[block] = self._prompts.get(block, 0) + 1
        self._prompts.move_to_end(block)
        if len(self._prompts) > self._most:
            self._prompts.popitem(last=False)

    def is_hot(self, block: bytes) -> bool:
        """Whether what ends with ``block`` is the beginning of many prompts."""
        return self._prompts.get(block, 0) >= MANY_PROMPTS
