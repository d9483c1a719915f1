"""What a step costs the scheduler, and what the prefix cache costs those who share nothing."""

from __future__ import annotations

import json
import urllib.request
from collections import deque
from collections.abc import Iterable
from random import Random
from statistics import median
from time import perf_counter

from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace, Request, RequestId, SamplingParams, StopRules
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.core.step import PENDING_TOKEN, StepPlan, StepResult
from sapwood_tools.bench_figures import Figure, interleaved, measured

_PAGE_SIZE = 16
_VOCAB_SIZE = 32_000
_PROMPT_TOKENS = 512


def plan_commit_64_running() -> Iterable[Figure]:
    """Plan and commit of a step in which 64 requests decode, one step ahead; baseline: a bare loop over 64
    rows.

    The loop fills the same columns and notes the same tokens, without deciding anything.
    """
    num_running, repetitions = 64, 1500
    num_pages = num_running * (_PROMPT_TOKENS + repetitions) // _PAGE_SIZE + 2 * num_running
    scheduler = _scheduler(num_pages, max_seats=num_running, cache_enabled=True)
    random = Random(1)
    for index in range(num_running):
        scheduler.submit(_request(random, index, max_tokens=repetitions + 200), 0.0)
    _run(scheduler, until_decoding=num_running)
    ahead = deque([_planned(scheduler)])
    result = StepResult(0, [7] * num_running, 0.06)

    def plan_and_commit() -> None:
        ahead.append(_planned(scheduler))
        result.step_id = ahead.popleft().step_id
        assert len(scheduler.commit(result)) == num_running

    outputs: list[list[int]] = [[] for _ in range(num_running)]

    def bare_loop() -> None:
        plan = StepPlan(0, "decode", [], [], [], [], [])
        for seat, output in enumerate(outputs):
            plan.seats.append(seat)
            plan.starts.append(len(output))
            plan.lengths.append(1)
            plan.token_ids.append(PENDING_TOKEN)
            plan.samples.append(True)
        said = []
        for seat, token in zip(plan.seats, result.token_ids, strict=True):
            outputs[seat].append(token)
            said.append((seat, token))
        assert len(said) == num_running

    value, baseline = interleaved(plan_and_commit, bare_loop, repetitions=repetitions)
    yield measured("plan_commit_64_running", "us", value * 1e6, baseline * 1e6)


def no_sharing_loss(request_seconds: float) -> Iterable[Figure]:
    """What the prefix cache adds to a request that shares nothing; baseline: ``request_seconds``, the whole request
    on a real engine, as `measure_request_seconds` measures it.

    Prompts of 512 random tokens, one output token each, run through scheduler and cache with an executor that
    answers at once, the cache on and off by turns; the pool holds a quarter of a round, so that the cache
    evicts all the time. The difference is work that a step waits for, or hides behind the step before where
    steps overlap: the ratio is an upper bound of the loss.
    """
    num_requests = 64
    num_pages = num_requests // 4 * _PROMPT_TOKENS // _PAGE_SIZE
    random = Random(2)
    on = _scheduler(num_pages, max_seats=8, cache_enabled=True)
    off = _scheduler(num_pages, max_seats=8, cache_enabled=False)

    def serve(scheduler: Scheduler) -> None:
        for index in range(num_requests):
            scheduler.submit(_request(random, index, max_tokens=1), 0.0)
        _run(scheduler)

    with_cache, without = interleaved(lambda: serve(on), lambda: serve(off), repetitions=25)
    loss = (with_cache - without) / num_requests
    yield measured("no_sharing_loss", "us", loss * 1e6, request_seconds * 1e6)


def measure_request_seconds(address: str, *, num_requests: int = 8) -> float:
    """Return the median time that the OpenAI server at ``address`` needs for one request of
    `no_sharing_loss`."""
    models = json.load(urllib.request.urlopen(f"{address}/v1/models", timeout=60))
    random = Random()
    seconds = []
    for _ in range(num_requests):
        body = {
            "model": models["data"][0]["id"],
            "prompt": [random.randrange(10, 1000) for _ in range(_PROMPT_TOKENS)],
            "max_tokens": 1,
        }
        request = urllib.request.Request(
            f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        start = perf_counter()
        with urllib.request.urlopen(request, timeout=600) as answer:
            answer.read()
        seconds.append(perf_counter() - start)
    return median(seconds)


def _scheduler(num_pages: int, *, max_seats: int, cache_enabled: bool) -> Scheduler:
    capacity = Capacity(
        num_pages=num_pages,
        page_size=_PAGE_SIZE,
        max_context_tokens=num_pages * _PAGE_SIZE,
        max_seats=max_seats,
        max_step_tokens=2048,
        vocab_size=_VOCAB_SIZE,
    )
    cache = PrefixCache(num_pages=num_pages, page_size=_PAGE_SIZE, enabled=cache_enabled)
    return Scheduler(SchedulerConfig(), capacity, cache)


def _request(random: Random, index: int, *, max_tokens: int) -> Request:
    prompt = tuple(random.choices(range(_VOCAB_SIZE), k=_PROMPT_TOKENS))
    sampling = SamplingParams(seed=0, temperature=0.0)
    return Request(RequestId(str(index)), Namespace("bench"), prompt, sampling, StopRules(max_tokens))


def _planned(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.plan(0.0)
    assert plan is not None
    return plan


def _run(scheduler: Scheduler, *, until_decoding: int | None = None) -> None:
    """Step with an instant executor until nothing is left to do, or so many rows decode."""
    while scheduler.has_work():
        plan = _planned(scheduler)
        scheduler.commit(StepResult(plan.step_id, [7] * len(plan.seats), 0.0))
        if plan.kind == "decode" and len(plan.seats) == until_decoding:
            return
