"""What this machine can do at most: memory read and copied, matrix products. One JSON object a line.

``.venv/bin/python bench/limits.py``. Medians; run it alone. docs/performance.md divides by these.
"""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Callable

import torch

from sapwood_engine.kernels.cpu_features import detect_cpu_features
from sapwood_engine.runtime.threads import default_num_threads

_ELEMENTS = 1 << 27
_ROWS, _OUT, _IN = 512, 3072, 576
"""SmolLM2's gate and up projections over a chunk of a prompt."""
_REPETITIONS = 9


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(default_num_threads())
    say("instruction set", detect_cpu_features().instruction_set)
    say("threads", torch.get_num_threads())
    source, target = torch.ones(_ELEMENTS), torch.zeros(_ELEMENTS)
    say("read_gb_per_second", 4 * _ELEMENTS / seconds(source.sum) / 1e9)
    say("copy_gb_per_second", 8 * _ELEMENTS / seconds(lambda: target.copy_(source)) / 1e9)
    for dtype in (torch.float32, torch.bfloat16):
        x, weight = torch.ones(_ROWS, _IN, dtype=dtype), torch.ones(_OUT, _IN, dtype=dtype)
        took = seconds(functools.partial(torch.nn.functional.linear, x, weight))
        say(f"{str(dtype).removeprefix('torch.')}_gflops", 2 * _ROWS * _OUT * _IN / took / 1e9)


def seconds(run: Callable[[], object]) -> float:
    """Return the median time of ``run``, after two runs that do not count."""
    times = []
    for _ in range(_REPETITIONS + 2):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def say(name: str, value: str | float) -> None:
    """Print one figure."""
    print(json.dumps({"name": name, "value": round(value, 1) if isinstance(value, float) else value}))


if __name__ == "__main__":
    main()
