"""What the miss-ratio curve costs: real steps of the builtin model under the real scheduler, curve on and off by turns.

``make bench-curve``; options of ``sapwood serve`` may follow. Two loads: prompts of 256 tokens that share nothing, and
conversations that go on from their answers. Ends with 1 where the time spent on the curve is 1 % of the steps' or more,
or where a step takes 1 % longer with it than without, the noise of steps that differ in nothing taken off.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from random import Random

import steps
from figures import Bar, judge, ratios, say, spread
from sapwood_contract.curve import Curve
from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.miss_ratio import MissRatio
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace, Request, RequestId, SamplingParams, StopRules
from sapwood_engine.core.reuse_stack import Trail
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.runtime.executor import TorchExecutor

_NAMESPACE = Namespace("bench")
_SEATS, _KV_TOKENS = 8, 8_192
_SAMPLE_RATE = 0.05
LOADS = ("alone", "conversations")
_ids = itertools.count()
Turns = list[list[list[int]]]
"""Rounds of prompts that are asked at once; in conversations, what each turn adds."""


class TimedMissRatio(MissRatio):
    """Adds up how long it takes."""

    seconds = 0.0

    def admitted(self, *args: object, **kwargs: object) -> Trail:
        begin = time.perf_counter()
        trail = super().admitted(*args, **kwargs)  # type: ignore[arg-type]  # passed on as they come
        self.seconds += time.perf_counter() - begin
        return trail

    def ended(self, trail: Trail, key: bytes) -> None:
        begin = time.perf_counter()
        super().ended(trail, key)
        self.seconds += time.perf_counter() - begin

    def curve(self) -> Curve:
        begin = time.perf_counter()
        curve = super().curve()
        self.seconds += time.perf_counter() - begin
        return curve


def main(argv: Sequence[str]) -> int:
    """Measure and judge; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench/curve_cost.py", allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--load", choices=LOADS, action="append", help="default: both")
    given, engine_options = parser.parse_known_args(list(argv))
    loaded = steps.load(engine_options, num_seats=_SEATS, kv_tokens=_KV_TOKENS, max_context_tokens=4_096)
    executor = TorchExecutor(
        loaded.capacity, loaded.runner().run, num_threads=loaded.torch_threads, release=loaded.pool.release
    )
    try:
        holds = [measure(executor, loaded.capacity, name, given.rounds) for name in given.load or LOADS]
    finally:
        executor.close()
    return 0 if all(holds) else 1


def measure(executor: TorchExecutor, capacity: Capacity, name: str, num_rounds: int) -> bool:
    """Serve a load with the curve, without and without again, by turns; print and judge."""
    times: dict[str, list[float]] = {"on": [], "off": [], "off again": []}
    shares = []
    for number in range(num_rounds + 1):
        for mode, seconds in times.items():
            whole, on_curve, num_steps = serve(executor, capacity, turns_of(name, seed=number), has_curve=mode == "on")
            if number:  # The first round warms up.
                seconds.append(whole / num_steps)
                shares += [on_curve / whole] if mode == "on" else []
    say(f"{name}: a step, curve on", "ms", spread([1e3 * each for each in times["on"]]))
    say(f"{name}: a step, curve off", "ms", spread([1e3 * each for each in times["off"]]))
    say(f"{name}: off against off", "ratio", ratios(times["off again"], times["off"]))
    noise = max(0.0, ratios(times["off again"], times["off"]).upper - 1)
    on_off = judge(f"{name}: on against off", ratios(times["on"], times["off"]), Bar(1.01 + noise, "at most"))
    return judge(f"{name}: share of the curve", spread(shares), Bar(0.01, "at most")) and on_off


def turns_of(name: str, *, seed: int) -> Turns:
    """Return a load: prompts of 256 tokens, or speakers with three turns under one system prompt."""
    random = Random(seed)
    if name == "alone":
        return [[_tokens(random, 256) for _ in range(_SEATS)]]
    system = _tokens(random, 100)
    return [
        [(system if turn == 0 else []) + _tokens(random, random.randint(10, 60)) for _ in range(_SEATS)]
        for turn in range(3)
    ]


def _tokens(random: Random, num_tokens: int) -> list[int]:
    return [random.randrange(1_000, 40_000) for _ in range(num_tokens)]


def serve(executor: TorchExecutor, capacity: Capacity, turns: Turns, *, has_curve: bool) -> tuple[float, float, int]:
    """Answer every turn with 16 tokens, from an empty cache; return seconds, those on the curve, and steps."""
    cache = PrefixCache(
        num_pages=capacity.num_pages, page_size=capacity.page_size, mrc_sample_rate=_SAMPLE_RATE if has_curve else None
    )
    timed = TimedMissRatio(
        num_pages=capacity.num_pages, page_size=capacity.page_size, token_bytes=4, sample_rate=_SAMPLE_RATE
    )
    cache.miss_ratio = timed if has_curve else None
    scheduler = Scheduler(SchedulerConfig(max_running=_SEATS), capacity, cache)
    history: list[list[int]] = [[] for _ in range(_SEATS)]
    num_steps = 0
    begin = time.perf_counter()
    for turn in turns:
        for said, added in zip(history, turn, strict=True):
            said += added
        num_steps += _answer(executor, scheduler, history, begin)
        cache.curve()
    return time.perf_counter() - begin, timed.seconds, num_steps


def _answer(executor: TorchExecutor, scheduler: Scheduler, history: list[list[int]], begin: float) -> int:
    asked = {}
    for said in history:
        name = RequestId(str(next(_ids)))
        asked[name] = said
        sampling = SamplingParams(seed=0, temperature=0.0)
        scheduler.submit(Request(name, _NAMESPACE, tuple(said), sampling, StopRules(16, 0, frozenset())), 0.0)
    num_steps = 0
    while scheduler.has_work():
        plan = scheduler.plan(time.perf_counter() - begin)
        assert plan is not None
        executor.launch(plan)
        for output in scheduler.commit(executor.collect()):
            asked[output.request_id] += output.token_ids
        num_steps += 1
    return num_steps


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
