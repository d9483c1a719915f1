"""Where a step's time goes: steps of the builtin model on an executor whose parts are timed. One JSON object a line.

``GOMP_SPINCOUNT=4000 .venv/bin/python bench/step_profile.py``, as the engine sets it; options of ``sapwood serve`` may
follow. Medians over some steps, in milliseconds: the whole step as the planner sees it; the model up to the hidden
states; the logits; the draw; the rest of the executor's work, which is tensors and bookkeeping; and the hand-over
between the planner's thread and the executor's. Run it alone.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

import steps
from sapwood_engine.core.request import SamplingParams
from sapwood_engine.core.step import StepPlan
from sapwood_engine.kernels.sampling import Doubles, Flags, Ids, Truncation
from sapwood_engine.layers.batch import StepBatch
from sapwood_engine.runtime.executor import TorchExecutor
from sapwood_engine.runtime.model_runner import Model, ModelRunner
from sapwood_engine.runtime.sampler import Draw

_CONTEXT, _CHUNK = 200, 512
_SEATS, _STEPS, _WARM_UP = 64, 25, 5
_SAMPLINGS = {
    "greedy": steps.GREEDY,
    "top_p": SamplingParams(seed=0, temperature=0.7, top_p=0.95),
    "penalised": SamplingParams(seed=0, temperature=0.0, frequency_penalty=0.5),
}


class Parts:
    """A model and a draw that add up how long they take."""

    def __init__(self, model: Model, draw: Draw) -> None:
        self._model = model
        self._draw = draw
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """See `Model.forward`."""
        begin = time.perf_counter()
        hidden = self._model.forward(batch)
        self.seconds["model"] += time.perf_counter() - begin
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Model.logits`."""
        begin = time.perf_counter()
        logits = self._model.logits(hidden)
        self.seconds["logits"] += time.perf_counter() - begin
        return logits

    def draw(self, logits: torch.Tensor, truncation: Truncation, uniforms: Doubles) -> tuple[Ids, Flags]:
        """See `Draw`."""
        begin = time.perf_counter()
        drawn = self._draw(logits, truncation, uniforms)
        self.seconds["draw"] += time.perf_counter() - begin
        return drawn


def main() -> None:
    """Print a line for each kind of step."""
    executor, parts = start(sys.argv[1:])
    report(executor, parts, f"prefill of {_CHUNK}", 1, _SAMPLINGS["greedy"], lambda _: steps.prefill(_CHUNK))
    for name, sampling in _SAMPLINGS.items():
        for num_seats in (1, 16, _SEATS):
            report(executor, parts, f"decode of {num_seats}, {name}", num_seats, sampling, decode_of(num_seats))
    executor.close()


def start(arguments: Sequence[str]) -> tuple[TorchExecutor, Parts]:
    """Return an executor as ``sapwood serve`` would build it, with room for all seats, and its timed parts."""
    loaded = steps.load(arguments, num_seats=_SEATS, kv_tokens=_SEATS * _CHUNK, max_context_tokens=_CHUNK)
    parts = Parts(loaded.model, loaded.draw)
    runner = ModelRunner(parts, loaded.pool, loaded.capacity, draw=parts.draw)
    release = loaded.pool.release
    return TorchExecutor(loaded.capacity, runner.run, num_threads=loaded.torch_threads, release=release), parts


def open_seat(executor: TorchExecutor, seat: int, sampling: SamplingParams) -> None:
    """Give ``seat`` its pages and compute its first `_CONTEXT` tokens."""
    pages_a_seat = _CHUNK // executor.capacity.page_size
    pages = range(pages_a_seat * seat, pages_a_seat * (seat + 1))
    executor.launch(steps.opening(seat, pages, sampling, range(_CONTEXT)))
    executor.collect()


def decode_of(num_seats: int) -> Callable[[int], StepPlan]:
    """The n-th decode step of ``num_seats`` seats."""
    return lambda n: steps.decode(num_seats, _CONTEXT + n, pending=True)


def report(
    executor: TorchExecutor,
    parts: Parts,
    name: str,
    num_seats: int,
    sampling: SamplingParams,
    make: Callable[[int], StepPlan],
) -> None:
    """Print the medians of a kind of step; ``make`` gives the n-th one."""
    for seat in range(num_seats):
        open_seat(executor, seat, sampling)
    timings: list[dict[str, float]] = []
    for n in range(_WARM_UP + _STEPS):
        plan = make(n)
        parts.seconds.clear()
        begin = time.perf_counter()
        executor.launch(plan)
        device = executor.collect().seconds
        whole = time.perf_counter() - begin
        rest = device - sum(parts.seconds.values())
        timings.append({"step": whole, **parts.seconds, "rest": rest, "hand_over": whole - device})
    medians = {part: statistics.median(timing[part] for timing in timings[_WARM_UP:]) for part in timings[0]}
    print(json.dumps({"name": name, **{f"{part}_ms": round(1e3 * t, 3) for part, t in medians.items()}}), flush=True)


if __name__ == "__main__":
    main()
