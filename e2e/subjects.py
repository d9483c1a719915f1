"""Prompts about some subjects, as people ask them again and again: a cache that holds a subject saves most of a prompt.

What is asked comes in rounds, each a shuffled deck of all subjects. So the hits of a hundred prompts are near those of
a thousand.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

_WORDS = (
    *("river", "stone", "garden", "window", "letter", "morning", "silver", "market", "bridge", "candle", "forest"),
    *("winter", "summer", "harbor", "engine", "paper", "mountain", "village", "kitchen", "music", "doctor", "teacher"),
    *("farmer", "soldier", "painter", "sailor", "student", "basket", "bottle", "hammer", "island", "valley", "desert"),
    *("ocean", "thunder", "shadow", "mirror", "button", "pocket", "ladder", "tunnel", "castle", "temple", "station"),
)
# With the model's template 48 tokens, and 64 of a subject: whole pages of a cache. Of a page that prompts share in part
# a curve knows no more than what the present cache had.
_PREAMBLE = "You answer in a few plain words, and you never ask anything back, whatever it is you are asked."
_NUM_WORDS = 58


def tale(number: int) -> str:
    """Return a prompt whose beginning is no other number's, for several blocks of a cache."""
    return f"Number {number} and nothing but {number}: " * 8


def subjects(number: int) -> list[str]:
    """Return so many prompts, each of some sixty tokens beside a beginning that all have; always the same."""
    chance = random.Random(number)
    return [f"{_PREAMBLE} Subject: {' '.join(chance.choices(_WORDS, k=_NUM_WORDS))}" for _ in range(number)]


class Rounds:
    """Thread-safe; any two of the same prompts have the same order."""

    def __init__(self, prompts: Sequence[str]) -> None:
        """``prompts``: each is asked once a round."""
        self._prompts = prompts
        self._chance = random.Random(len(prompts))
        self._deck: list[str] = []
        self._lock = threading.Lock()

    def next(self, _client: int = 0) -> str:
        """Return the next prompt."""
        with self._lock:
            if not self._deck:
                self._deck = self._chance.sample(self._prompts, len(self._prompts))
            return self._deck.pop()
