"""Finds stop strings in text that arrives in pieces.

Invariant: what is delivered does not depend on how the text was cut into pieces, and never holds a part of
the stop string that ended it. Only a suffix that is a real prefix of some stop string waits.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopScan:
    """What one piece of text led to."""

    text: str
    """To be delivered now."""
    matched: str | None
    """The stop string that was completed; nothing after it is delivered."""


class StopMatcher:
    """Watches one text for the first stop string to be completed; of several completed at once, the
    longest.

    Going by where a stop string ends, not by where it starts, is what makes the outcome independent of the
    pieces: with the stops ``abc`` and ``b``, the text ``ab`` is already decided.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), f"an empty stop string matches everything: {stops}"
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> StopScan:
        """Take the next piece; must not be called again once a stop string has matched."""
        text = self._held + text
        match = self._first_completed(text)
        if match is not None:
            start, stop = match
            self._held = ""
            return StopScan(text[:start], stop)
        num_held = self._longest_open_suffix(text)
        self._held = text[len(text) - num_held :]
        return StopScan(text[: len(text) - num_held], None)

    def flush(self) -> str:
        """The text is over: return what was held back."""
        held, self._held = self._held, ""
        return held

    def _first_completed(self, text: str) -> tuple[int, str] | None:
        found = [(start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found, key=lambda match: (match[0] + len(match[1]), match[0])) if found else None

    def _longest_open_suffix(self, text: str) -> int:
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
