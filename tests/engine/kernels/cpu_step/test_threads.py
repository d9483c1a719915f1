"""Barriers hold, whether threads have a core each or must sleep for one."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numba import njit

from sapwood_engine.kernels.cpu_step.threads import SLEEPERS, bind_threads, count_together, wait_for

PHASES = 300


@njit(nogil=True)
def walk(barrier: int, places: Any, t: int, work: int) -> int:  # pragma: no cover  # compiled
    """Go from phase to phase; return how often another thread was not where it should be."""
    faults = 0
    num_threads = places.shape[0]
    for phase in range(1, PHASES + 1):
        spun = 0.0
        for i in range(work * (t + phase) % 5000):
            spun += np.sqrt(np.float64(i))
        places[t] = phase if spun >= 0 else 0
        wait_for(barrier, (2 * phase - 1) * num_threads)
        for other in range(num_threads):
            faults += places[other] != phase
        wait_for(barrier, 2 * phase * num_threads)
    return faults


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("work", [0, 977])
def test_nobody_passes_a_barrier_before_all_are_there(num_threads: int, work: int) -> None:
    """With five threads on fewer cores some must sleep until they are woken."""
    barrier, places = np.zeros(3, np.int64), np.zeros(num_threads, np.int64)
    with ThreadPoolExecutor(num_threads) as pool:
        walks = [pool.submit(walk, barrier.ctypes.data, places, t, work) for t in range(num_threads)]
        assert [w.result() for w in walks] == [0] * num_threads
    assert barrier[0] == 2 * PHASES * num_threads
    assert barrier[SLEEPERS // 8] == 0


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no threads")
def test_the_calling_thread_is_bound_and_let_go() -> None:
    def bind() -> tuple[set[int], set[int]]:
        allowed = os.sched_getaffinity(0)
        bind_threads([{max(allowed)}])
        bound = os.sched_getaffinity(0)
        bind_threads([allowed])
        return bound, os.sched_getaffinity(0)

    allowed = os.sched_getaffinity(0)
    with ThreadPoolExecutor(1) as pool:  # a thread of its own: nobody else's affinity changes
        assert pool.submit(bind).result() == ({max(allowed)}, allowed)


def test_a_pool_that_gives_fewer_threads_than_asked_for_is_found_out() -> None:
    """At a barrier for two, one thread alone would wait for ever."""
    code = """
from sapwood_engine.kernels.cpu_step.threads import count_together
print(count_together(2))
"""
    environment = {**os.environ, "OMP_THREAD_LIMIT": "1", "NUMBA_THREADING_LAYER": "omp", "NUMBA_NUM_THREADS": "2"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "1"


def test_the_threads_that_are_there_are_counted() -> None:
    assert count_together(1) == 1
    assert 1 <= count_together(2) <= 2
