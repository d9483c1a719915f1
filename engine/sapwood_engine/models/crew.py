"""How many threads compute the next step, and on which processors.

All that were asked for, each bound to a processor of its own, as long as they have the processors to themselves. When
another program takes one of them, every barrier waits for the thread that was put aside: then fewer threads, bound to
nothing, are quicker. Results do not depend on the number of threads, so it may change from step to step.

Two cores with one busy program on them, SmolLM2-135M: one stream 21 ms a token with two threads, 12 ms with one.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from sapwood_engine.kernels.compiled import use_threads
from sapwood_engine.kernels.cpu_step.threads import bind_threads, count_together

_JUDGED_SECONDS = 0.3
"""Steps are judged together until they have taken so long: a single one, a prefill above all, may lose a quarter."""
_TRIAL_SECONDS = 0.05
"""And so long where one thread more is tried: where that fails, every step of it was slow."""
_LOST_SHARE = 0.2
"""Of the threads' time, asleep at barriers: more means that they share their processors. On two cores 99 in 100
stretches of so many steps are below 0.1 alone, all of them below 0.17; beside a program that keeps one core busy 99 in
100 are above 0.23."""
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 4.0
"""Until one thread more is tried again; the pause doubles as long as the trials fail."""


@dataclass(slots=True)
class CrewSize:
    """The decision alone: from how long steps took and how much of it was slept to the number of threads."""

    most: int
    current: int
    _seconds: float = 0.0
    _lost_seconds: float = 0.0
    _calm_seconds: float = 0.0
    _pause_seconds: float = _FIRST_PAUSE_SECONDS
    _on_trial: bool = False

    def observe(self, seconds: float, slept_seconds: float) -> None:
        """Take in a step that took ``seconds`` with ``current`` threads, which slept ``slept_seconds`` altogether."""
        self._seconds += seconds
        self._lost_seconds += slept_seconds / self.current
        if self._seconds < (_TRIAL_SECONDS if self._on_trial else _JUDGED_SECONDS):
            return
        self._on_trial = False
        lost = self._lost_seconds > _LOST_SHARE * self._seconds
        self._calm_seconds = 0.0 if lost else self._calm_seconds + self._seconds
        self._seconds = self._lost_seconds = 0.0
        if lost and self.current > 1:
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
            self.current -= 1
        elif self._calm_seconds >= self._pause_seconds:
            self._calm_seconds = 0.0
            if self.current == self.most:
                self._pause_seconds = _FIRST_PAUSE_SECONDS
            else:
                self.current += 1
                self._on_trial = True


class Crew:
    """Carries the decision out; used from the thread that computes."""

    def __init__(self, num_threads: int, *, bind: bool) -> None:
        """``bind``: whether threads may be bound to processors."""
        most = use_threads(num_threads)
        self.size = CrewSize(most, most)
        self._counted = False
        self._may_bind = bind
        self._allowed = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
        self._own: list[frozenset[int]] = []
        self._bound_thread = 0
        """The thread whose pool is bound; each thread that computes has a pool of its own"""

    def ready(self) -> int:
        """Have the calling thread's pool ready; return how many threads it may use now."""
        if not self._counted:
            self._count()
        num_threads = use_threads(self.size.current)
        bound = bool(self._own) and num_threads == self.size.most
        thread = threading.get_ident()
        if bound != (self._bound_thread == thread):
            use_threads(self.size.most)
            bind_threads(self._own if bound else [self._allowed] * self.size.most)
            use_threads(num_threads)
            self._bound_thread = thread if bound else 0
        return num_threads

    def _count(self) -> None:
        """Once, on the thread that computes, whose pool it is: how many threads there really are."""
        most = count_together(self.size.most)
        self.size = CrewSize(most, most)
        own = one_of_each_core(self._allowed)
        # With fewer threads than processors they are better off where the system moves them.
        self._own = [frozenset({p}) for p in own] if self._may_bind and len(own) == most > 1 else []
        self._counted = True


def one_of_each_core(processors: frozenset[int], topology: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """Return the first of ``processors`` on each physical core, where the system tells; else all of them."""
    cores: dict[str, int] = {}
    for processor in sorted(processors):
        try:
            siblings = (topology / f"cpu{processor}" / "topology" / "thread_siblings_list").read_text().strip()
        except OSError:
            siblings = str(processor)
        cores.setdefault(siblings, processor)
    return list(cores.values())
