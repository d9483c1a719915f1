"""How fast a replica computes prompts, by the requests that it had to itself.

From sending to the first token a replica that had nothing else to do computes the prompt, so that is a measure, if it
is long enough for all else not to count. Behind others it is none: the wait is not the replica's speed.
"""

from __future__ import annotations

MEASURED_TOKENS = 256
"""A prompt of fewer tokens to compute tells of connections, not of computing."""
TRUSTED_SAMPLES = 3
"""Fewer say nothing: the first ones of an engine are slow."""
_FALLS_BY = 0.1
"""A slower one moves the speed by this share only: others' requests may have been there unseen."""


class PrefillSpeed:
    """Of one replica."""

    def __init__(self) -> None:
        self._tokens_per_second = 0.0
        self._num_samples = 0

    def note(self, num_tokens: int, seconds: float) -> None:
        """An idle replica took ``seconds`` for ``num_tokens`` that it did not hold, and the first of its answer."""
        if num_tokens < MEASURED_TOKENS or seconds <= 0:
            return
        self._num_samples += 1
        sample = num_tokens / seconds
        fallen = self._tokens_per_second + _FALLS_BY * (sample - self._tokens_per_second)
        self._tokens_per_second = max(sample, fallen)

    @property
    def tokens_per_second(self) -> float | None:
        """None while it is not known."""
        return self._tokens_per_second if self._num_samples >= TRUSTED_SAMPLES else None
