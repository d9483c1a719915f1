"""The port to the device: steps launched from one thread run, in order, on another.

``launch`` only queues the plan, so the next step is planned while this one computes: the products and kernels release
the interpreter's lock. Order and the hand-over of tokens between steps need no locks, for one thread owns all state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

import torch

from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.step import StepPlan, StepResult
from sapwood_engine.errors import StepFailed

MAX_IN_FLIGHT = 2

RunStep = Callable[[StepPlan], StepResult]


class TorchExecutor:
    """`core.ports.Executor` over a function that runs one step."""

    def __init__(
        self, capacity: Capacity, run: RunStep, *, num_threads: int, release: Callable[[], None] = lambda: None
    ) -> None:
        """``run`` is called on the executor's own thread only, which computes with ``num_threads`` threads.

        ``release`` is called once, when that thread has ended.
        """
        self._capacity = capacity
        self._run = run
        self._num_threads = num_threads
        self._release = release
        self._plans: SimpleQueue[StepPlan | None] = SimpleQueue()
        self._outcomes: SimpleQueue[StepResult | StepFailed] = SimpleQueue()
        self._num_in_flight = 0
        self._closed = False
        self._thread = Thread(target=self._work, name="sapwood-executor", daemon=True)
        self._thread.start()

    @property
    def capacity(self) -> Capacity:
        """See `Executor.capacity`."""
        return self._capacity

    def launch(self, plan: StepPlan) -> None:
        """See `Executor.launch`."""
        assert not self._closed, "launch after close"
        assert self._num_in_flight < MAX_IN_FLIGHT, f"{self._num_in_flight} steps are in flight already"
        self._num_in_flight += 1
        self._plans.put(plan)

    def collect(self) -> StepResult:
        """See `Executor.collect`."""
        assert self._num_in_flight > 0, "no step is in flight"
        outcome = self._outcomes.get()
        self._num_in_flight -= 1
        if isinstance(outcome, StepFailed):
            raise outcome
        return outcome

    def close(self) -> None:
        """End the thread after the steps it has, and release the memory; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._plans.put(None)
        self._thread.join()
        self._release()

    def _work(self) -> None:
        # OpenMP counts threads for each calling thread anew: a setting made elsewhere does not hold here.
        torch.set_num_threads(self._num_threads)
        while (plan := self._plans.get()) is not None:
            self._outcomes.put(self._attempt(plan))

    def _attempt(self, plan: StepPlan) -> StepResult | StepFailed:
        begin = time.perf_counter()
        try:
            result = self._run(plan)
        except Exception as error:
            failed = StepFailed(plan.step_id, f"{type(error).__name__}: {error}")
            failed.__cause__ = error
            return failed
        result.seconds = time.perf_counter() - begin
        return result
