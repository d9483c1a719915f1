"""What an engine computes before it is asked, and how long it puts off being ready for that.

``--warm-wait-seconds`` is how long a loaded engine waits for a first call that says what to compute. From then on it
waits until a call that said it was the last is worked off, but in all never longer than `MOST_WAITS` such waits: what
was to tell it more may be gone. Pure: the time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sapwood_engine.core.warming import WarmCounts

MOST_WAITS = 4


@dataclass(slots=True)
class WarmUp:
    """Of one start."""

    wait_seconds: float
    counts: WarmCounts = field(default_factory=WarmCounts)
    """As the worker told them last."""
    _loaded_at: float | None = None
    _was_called: bool = False
    _is_last: bool = False

    def loaded(self, now: float) -> None:
        """The engine could be ready from ``now`` on; only the first call counts."""
        if self._loaded_at is None:
            self._loaded_at = now

    def called(self, *, is_last: bool) -> None:
        """A call was taken, and `counts` have its prefixes."""
        self._was_called = True
        self._is_last = self._is_last or is_last

    def seconds_left(self, now: float) -> float:
        """Return how much longer the engine waits at most, if nothing else is heard; 0: it may be ready."""
        assert self._loaded_at is not None, "it is not loaded"
        if self._is_last and not self.counts.num_waiting:
            return 0.0
        most = self.wait_seconds * (MOST_WAITS if self._was_called else 1)
        return max(0.0, self._loaded_at + most - now)
