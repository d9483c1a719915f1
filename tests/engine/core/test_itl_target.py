"""Streams that decode while long prompts are prefilled, on a simulated machine with a clock of its own.

Its steps cost what those of SmolLM2-135M do on two AVX512-BF16 cores: a decode 8 ms alone and 20 ms for 16, a prefill
0.3 s for 512 tokens, nothing less than 6 ms.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace, Request, RequestId, SamplingParams, StopRules
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.core.step import StepPlan, StepResult

NO_LIMIT = 3600.0
TARGET = 0.1
LONG_TOKENS = 4000


def machine_seconds(plan: StepPlan) -> float:
    num_decodes = sum(length == 1 for length in plan.lengths)
    decode_seconds = 0.0072 + 0.0008 * num_decodes if num_decodes else 0.0
    return max(0.006, decode_seconds + 0.3 / 512 * (len(plan.token_ids) - num_decodes))


@dataclass(slots=True)
class Simulation:
    """An engine's loop with overlap: a step is planned while the one before computes."""

    itl_target_seconds: float
    noise: float = 0.0
    outliers: float = 0.0
    """Share of steps that take ten times as long."""
    now: float = 0.0
    arrived: dict[str, float] = field(default_factory=dict)
    token_times: dict[str, list[float]] = field(default_factory=dict)
    chunks: list[tuple[bool, int]] = field(default_factory=list)
    """Of every step with a prefill, whether somebody decodes in it and the tokens prefilled."""
    scheduler: Scheduler = field(init=False)
    _in_flight: deque[tuple[StepPlan, float]] = field(default_factory=deque)
    _random: Random = field(default_factory=lambda: Random(1))

    def __post_init__(self) -> None:
        capacity = Capacity(
            num_pages=4096, page_size=16, max_context_tokens=8192, max_seats=64, max_step_tokens=2048, vocab_size=1000
        )
        cache = PrefixCache(num_pages=capacity.num_pages, page_size=capacity.page_size)
        config = SchedulerConfig(itl_target_seconds=self.itl_target_seconds)
        self.scheduler = Scheduler(config, capacity, cache)

    def submit(self, name: str, num_prompt: int, *, max_tokens: int) -> None:
        prompt = tuple(self._random.choices(range(1000), k=num_prompt))
        sampling = SamplingParams(seed=0, temperature=0.0)
        self.scheduler.submit(
            Request(RequestId(name), Namespace("m"), prompt, sampling, StopRules(max_tokens)), self.now
        )
        self.arrived[name] = self.now
        self.token_times[name] = []

    def turn(self) -> None:
        while len(self._in_flight) < 2 and (plan := self.scheduler.plan(self.now)) is not None:
            seconds = machine_seconds(plan) * max(0.5, self._random.gauss(1, self.noise))
            self._in_flight.append((plan, seconds * 10 if self._random.random() < self.outliers else seconds))
            num_decodes = sum(length == 1 for length in plan.lengths)
            if plan.kind != "decode":
                self.chunks.append((num_decodes > 0, len(plan.token_ids) - num_decodes))
        plan, seconds = self._in_flight.popleft()
        self.now += seconds
        for output in self.scheduler.commit(StepResult(plan.step_id, [7] * len(plan.seats), seconds)):
            self.token_times[output.request_id] += [self.now] * len(output.token_ids)

    def run_until(self, *names: str, num_tokens: int) -> None:
        """Run until each of ``names`` has so many tokens."""
        while min(len(self.token_times[name]) for name in names) < num_tokens:
            self.turn()

    def ttft(self, name: str) -> float:
        return self.token_times[name][0] - self.arrived[name]

    def gaps(self, names: list[str], *, since: float) -> list[float]:
        """Times between tokens of ``names``, the shortest first."""
        times = [self.token_times[name] for name in names]
        return sorted(after - before for each in times for before, after in pairwise(each) if after > since)


STREAMS = [f"stream {number}" for number in range(16)]
PROMPTS = [f"prompt {number}" for number in range(4)]


def long_prompts_arrive(itl_target_seconds: float, *, noise: float = 0.0, outliers: float = 0.0) -> Simulation:
    """16 streams decode when 4 long prompts arrive; ends when each of these has its first token."""
    simulation = Simulation(itl_target_seconds, noise, outliers)
    for name in STREAMS:
        simulation.submit(name, 100, max_tokens=4000)
    simulation.run_until(*STREAMS, num_tokens=30)
    for name in PROMPTS:
        simulation.submit(name, LONG_TOKENS, max_tokens=8)
    simulation.run_until(*PROMPTS, num_tokens=1)
    return simulation


def p95(in_order: list[float]) -> float:
    return in_order[int(0.95 * len(in_order))]


@pytest.mark.parametrize(("noise", "outliers"), [(0.0, 0.0), (0.08, 0.02)])
def test_tokens_keep_coming_in_time_while_long_prompts_are_prefilled(noise: float, outliers: float) -> None:
    simulation = long_prompts_arrive(TARGET, noise=noise, outliers=outliers)
    assert p95(simulation.gaps(STREAMS, since=simulation.arrived[PROMPTS[0]])) <= 1.2 * TARGET


@pytest.mark.parametrize(("noise", "outliers"), [(0.0, 0.0), (0.08, 0.02)])
def test_long_prompts_wait_at_most_one_and_a_half_times_as_long_for_it(noise: float, outliers: float) -> None:
    without = long_prompts_arrive(NO_LIMIT, noise=noise, outliers=outliers)
    assert p95(without.gaps(STREAMS, since=without.arrived[PROMPTS[0]])) > 5 * TARGET, "there is nothing to show"
    limited = long_prompts_arrive(TARGET, noise=noise, outliers=outliers)
    for name in PROMPTS:
        assert limited.ttft(name) <= 1.5 * without.ttft(name)


def test_a_short_prompt_does_not_wait_for_the_end_of_long_ones() -> None:
    simulation = Simulation(TARGET)
    for name in STREAMS:
        simulation.submit(name, 100, max_tokens=4000)
    simulation.run_until(*STREAMS, num_tokens=30)
    for name in PROMPTS[:3]:
        simulation.submit(name, LONG_TOKENS, max_tokens=8)
    for _ in range(10):
        simulation.turn()
    simulation.submit("short", 400, max_tokens=8)
    simulation.run_until("short", num_tokens=1)
    assert simulation.ttft("short") < 1.0


def test_a_target_beyond_reach_leaves_prefills_a_quarter_of_the_time() -> None:
    fast, slow = long_prompts_arrive(NO_LIMIT), long_prompts_arrive(0.001)
    assert max(map(slow.ttft, PROMPTS)) < 4.2 * max(map(fast.ttft, PROMPTS))


def test_whole_chunks_are_prefilled_while_nobody_decodes() -> None:
    simulation = Simulation(0.001)
    simulation.submit("stream", 512, max_tokens=100)
    simulation.run_until("stream", num_tokens=100)
    simulation.chunks.clear()
    simulation.submit("long", 2048, max_tokens=1)
    simulation.run_until("long", num_tokens=1)
    assert simulation.chunks == [(False, 512)] * 4
