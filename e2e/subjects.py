"""Prompts about some subjects, as people ask them again and again: a cache that holds a subject saves most of a prompt.

What is asked comes in rounds, each a shuffled deck of all subjects. So the hits of a hundred prompts are near those of
a thousand.
"""

from __future__ import annotations

import random
import threading

_WORDS = (
    *("river", "stone", "garden", "window", "letter", "morning", "silver", "market", "bridge", "candle", "forest"),
    *("winter", "summer", "harbor", "engine", "paper", "mountain", "village", "kitchen", "music", "doctor", "teacher"),
    *("farmer", "soldier", "painter", "sailor", "student", "basket", "bottle", "hammer", "island", "valley", "desert"),
    *("ocean", "thunder", "shadow", "mirror", "button", "pocket", "ladder", "tunnel", "castle", "temple", "station"),
)
_PREAMBLE = " ".join(("You answer in a few plain words, and you never ask anything back.",) * 4)
_NUM_WORDS = 100


def tale(number: int) -> str:
    """Return a prompt whose beginning is no other number's, for several blocks of a cache."""
    return f"Number {number} and nothing but {number}: " * 8


class Subjects:
    """Thread-safe; the same prompts in every run."""

    def __init__(self, number: int) -> None:
        """``number``: of subjects, each of about a hundred tokens beside a beginning that all have."""
        chance = random.Random(number)
        self._texts = [" ".join(chance.choices(_WORDS, k=_NUM_WORDS)) for _ in range(number)]
        self._chance = chance
        self._deck: list[str] = []
        self._lock = threading.Lock()

    def next(self, _client: int = 0) -> str:
        """Return the next prompt."""
        with self._lock:
            if not self._deck:
                self._deck = self._chance.sample(self._texts, len(self._texts))
            return f"{_PREAMBLE} Subject: {self._deck.pop()}"
