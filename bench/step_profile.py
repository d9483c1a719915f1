"""Where a step's time goes: steps of the builtin model under torch's profiler. One JSON object a line.

``GOMP_SPINCOUNT=4000 .venv/bin/python bench/step_profile.py``, as the engine sets it. For decode of 1 and of 16
sequences and for a chunk of prefill: the step's median without the profiler, then each operator's share of the time
the profiler saw. Run it alone.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from sapwood_contract.launch import LaunchOptions
from sapwood_engine.checkpoint.source import open_checkpoint
from sapwood_engine.config import engine_config
from sapwood_engine.core.ports import Executor
from sapwood_engine.core.request import SamplingParams
from sapwood_engine.core.step import PageUpdate, SeatOpened, StepPlan
from sapwood_engine.runtime.start import build_executor

_CONTEXT, _CHUNK, _STEPS = 200, 512, 15
_MOST_OPERATORS = 8
_step_ids = itertools.count()


def main() -> None:
    """Start the executor of the default options and profile three kinds of step."""
    options = LaunchOptions(kv_tokens=32768)
    started = build_executor(
        engine_config(options),
        open_checkpoint(options.model),
        kernel_cache=Path.home() / ".cache" / "sapwood" / "kernels",
        progress=lambda *_: None,
    )
    executor = started.executor
    for name, make in {
        "decode of 1": lambda: decode(1),
        "decode of 16": lambda: decode(16),
        f"prefill of {_CHUNK}": prefill,
    }.items():
        for seat in range(16):
            open_seat(executor, seat)
        report(name, executor, make)
    executor.close()


def open_seat(executor: Executor, seat: int) -> None:
    """Give ``seat`` its pages and compute its first `_CONTEXT` tokens."""
    pages = range(64 * seat, 64 * (seat + 1))
    opened = SeatOpened(seat, SamplingParams(seed=0, temperature=0.0), (), (7,) * _CONTEXT, ())
    plan = StepPlan(next(_step_ids), "prefill", [seat], [0], [_CONTEXT], [7] * _CONTEXT, [True])
    plan.opened, plan.page_updates = [opened], [PageUpdate(seat, 0, tuple(pages))]
    run(executor, plan)


def decode(num_seats: int) -> StepPlan:
    """One token for each of ``num_seats`` seats."""
    seats = list(range(num_seats))
    ones = [1] * num_seats
    return StepPlan(next(_step_ids), "decode", seats, [_CONTEXT] * num_seats, ones, [7] * num_seats, [True] * num_seats)


def prefill() -> StepPlan:
    """A chunk of a new prompt."""
    return StepPlan(next(_step_ids), "prefill", [0], [0], [_CHUNK], [7] * _CHUNK, [True])


def run(executor: Executor, plan: StepPlan) -> float:
    """Run one step; return its seconds."""
    executor.launch(plan)
    return executor.collect().seconds


def report(name: str, executor: Executor, make: Callable[[], StepPlan]) -> None:
    """Print the step's median and the shares of its operators."""
    median = statistics.median(run(executor, make()) for _ in range(_STEPS))
    print(json.dumps({"step": name, "median_ms": round(1e3 * median, 2)}))
    # The steps run on the executor's own thread, which the profiler leaves out unless told.
    every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=every_thread) as seen:
        for _ in range(_STEPS):
            run(executor, make())
    events = sorted(seen.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    for event in events[:_MOST_OPERATORS]:
        share = event.self_cpu_time_total / total
        print(
            json.dumps({"step": name, "operator": event.key, "calls": event.count // _STEPS, "share": round(share, 3)})
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
