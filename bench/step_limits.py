"""A step against what this machine can do at most, both measured in one run. One JSON object a line.

``make bench-limits``; options of ``sapwood serve`` may follow, for a model with 16-bit weights. Rounds in which
everything is measured once, so that a slow minute falls on all; ratios are taken within a round. Ends with 1 where a
bar is missed. Run it alone.

The limits: memory, by reading matrices as large as the model's once, every thread its own share; arithmetic, by the
highest tile out of the nearest cache. A step's products are held against whichever of the two would take longer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import steps
from figures import Bar, judge, ratios, say, spread
from sapwood_engine.kernels.compiled import use_threads
from sapwood_tools.bench.cpu_use import machine_facts

_CONTEXT, _STREAMS, _CHUNK = 256, 16, 512
_READ, _HOT = "reading the weights", "hot tiles"
_DECODE_1, _DECODE_16, _PREFILL = "decode of 1", f"decode of {_STREAMS}", f"prefill of {_CHUNK}"
_PRODUCTS_16, _PRODUCTS_512 = f"products of a decode of {_STREAMS}", f"products of a prefill of {_CHUNK}"
_DECODE_BAR = Bar(1.3, "at most")
_PRODUCT_BARS = {_PRODUCTS_16: Bar(0.75, "at least"), _PRODUCTS_512: Bar(0.8, "at least")}


def main(argv: Sequence[str]) -> int:
    """Measure, print and judge; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench/step_limits.py", allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    given, engine_options = parser.parse_known_args(list(argv))
    machine = machine_facts()  # now, for the engine binds this thread to one core
    loaded = steps.load(engine_options, num_seats=_STREAMS, kv_tokens=_STREAMS * _CHUNK, max_context_tokens=_CHUNK)
    # The folder for compiled functions had to be set first.
    import probes  # noqa: PLC0415

    threads = use_threads(loaded.num_threads)
    matrices = probes.model_matrices(loaded.spec)
    hot = probes.HotTiles(threads)
    products = {
        _PRODUCTS_16: probes.Products(matrices, _STREAMS, _STREAMS, threads),
        _PRODUCTS_512: probes.Products(matrices, _CHUNK, 1, threads),
    }
    works: dict[str, Callable[[], object]] = {
        _READ: probes.Reading(matrices, threads).run,
        **_step_works(loaded),
        _HOT: hot.run,
        **{name: product.run for name, product in products.items()},
    }
    seconds = _measure(works, given.rounds)
    steps.keep_kernels(loaded)

    num_bytes = probes.weight_bytes(matrices)
    _say_limits(seconds, num_bytes, hot.flops, num_threads=threads, machine=machine)
    holds = [judge(f"{_DECODE_1} over {_READ}", ratios(seconds[_DECODE_1], seconds[_READ]), _DECODE_BAR)]
    holds += [_judge_products(name, product.flops, hot.flops, seconds) for name, product in products.items()]
    return 0 if all(holds) else 1


def _step_works(loaded: steps.Loaded) -> dict[str, Callable[[], object]]:
    """Whole steps of the engine, sampling included, by name."""
    runner = loaded.runner()
    steps.fill_pages(loaded.pool)
    pages = steps.shuffled_pages(loaded.capacity)
    a_seat = _CHUNK // loaded.capacity.page_size
    for seat in range(_STREAMS):
        runner.run(steps.opening(seat, pages[seat * a_seat : (seat + 1) * a_seat]))
    return {
        _DECODE_1: lambda: runner.run(steps.decode(1, _CONTEXT - 1)),
        _DECODE_16: lambda: runner.run(steps.decode(_STREAMS, _CONTEXT - 1)),
        _PREFILL: lambda: runner.run(steps.prefill(_CHUNK)),
    }


def _measure(works: Mapping[str, Callable[[], object]], num_rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every work in every round, after one round that does not count."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(num_rounds + 1):
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            if number > 0:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def _say_limits(
    seconds: Mapping[str, list[float]],
    num_bytes: int,
    hot_flops: float,
    *,
    num_threads: int,
    machine: Mapping[str, object],
) -> None:
    say("memory", "GB/s", spread([num_bytes / took / 1e9 for took in seconds[_READ]]), machine=machine)
    say("arithmetic", "GFLOP/s", spread([hot_flops / took / 1e9 for took in seconds[_HOT]]), threads=num_threads)
    for name, values in seconds.items():
        say(name, "ms", spread([1e3 * value for value in values]))


def _judge_products(name: str, flops: float, hot_flops: float, seconds: Mapping[str, list[float]]) -> bool:
    """Hold the products' share of the limit that binds against its bar."""
    least = {
        "memory": seconds[_READ],
        "arithmetic": [flops / (hot_flops / took) for took in seconds[_HOT]],
    }
    binding = max(least, key=lambda limit: spread(least[limit]).median)
    share = ratios(least[binding], seconds[name])
    of_arithmetic = ratios(least["arithmetic"], seconds[name]).median
    return judge(
        f"{name}: share of the limit",
        share,
        _PRODUCT_BARS[name],
        binding=binding,
        of_arithmetic=round(of_arithmetic, 3),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
