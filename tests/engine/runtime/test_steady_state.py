"""A step's allocations depend on its rows and tokens, not on how much is cached."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
from support_torch_executor import capacity, composed, tiny_pool
from torch.profiler import ProfilerActivity, profile

from sapwood_engine.core.request import SamplingParams
from sapwood_engine.core.step import PageUpdate, SeatOpened, StepPlan
from sapwood_engine.kernels.attention.reference import ReferenceAttention
from sapwood_engine.kernels.attention.select import select
from sapwood_engine.kernels.cpu_features import detect_cpu_features
from sapwood_engine.runtime.model_runner import ModelRunner

LIMITS = capacity(num_pages=1024, page_size=4, max_seats=4, context=512)
SEATS = range(4)


@pytest.fixture(scope="module")
def runner(pytestconfig: pytest.Config) -> ModelRunner:
    """Four seats with pages for their whole context."""
    assert pytestconfig.cache is not None
    choice = select(
        "cpu", detect_cpu_features(), head_dim=8, num_threads=1, cache_folder=pytestconfig.cache.mkdir("kernels")
    )
    pool = tiny_pool(LIMITS)
    for layer in pool.layers:
        for cache in layer:
            cache.zero_()  # the contexts are not computed, and NaN would stop the sampler
    runner = ModelRunner(composed(choice.make()), pool, LIMITS)
    plan = StepPlan(0, "prefill", list(SEATS), [0] * 4, [1] * 4, [1] * 4, [True] * 4)
    greedy = SamplingParams(seed=0, temperature=0.0)
    plan.opened += [SeatOpened(seat, greedy, (), (1,), ()) for seat in SEATS]
    plan.page_updates += [PageUpdate(seat, 0, tuple(range(seat * 128, seat * 128 + 128))) for seat in SEATS]
    runner.run(plan)
    return runner


def decode_at(runner: ModelRunner, position: int) -> None:
    runner.run(StepPlan(1, "decode", list(SEATS), [position] * 4, [1] * 4, [1] * 4, [True] * 4))


def tensor_bytes(runner: ModelRunner, position: int) -> int:
    """Everything that torch allocates during a step."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        decode_at(runner, position)
    return sum(max(0, event.self_cpu_memory_usage) for event in profiler.events() or [])


def python_bytes(runner: ModelRunner, position: int) -> int:
    """The peak of what Python and numpy allocate during a step.

    The least of several steps: whatever else runs in this process, a collector or a thread, can only add to it.
    """
    peaks = []
    for _ in range(40):
        tracemalloc.start()
        decode_at(runner, position)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return min(peaks)


@pytest.mark.filterwarnings("ignore:.*[Pp]rofiler.*")
def test_torch_allocates_the_same_however_long_the_contexts_are(runner: ModelRunner) -> None:
    decode_at(runner, 500)
    short = tensor_bytes(runner, 8)
    assert short > 0
    assert tensor_bytes(runner, 500) == short


def test_python_allocates_the_same_however_long_the_contexts_are(runner: ModelRunner) -> None:
    for position in (270, 500):
        python_bytes(runner, position)
    # Both beyond 256, up to which Python keeps its integers: each larger one is an object of 32 bytes. A list of the
    # 57 pages more of one of the later seats, whose ids are beyond 256 too, would be 2,200 bytes.
    assert abs(python_bytes(runner, 500) - python_bytes(runner, 270)) < 512


def test_the_pool_stays_where_it_is() -> None:
    limits = capacity()
    pool = tiny_pool(limits)
    before = [cache.data_ptr() for layer in pool.layers for cache in layer]
    plan = StepPlan(0, "prefill", [0], [0], [50], [1] * 50, [True])
    plan.opened.append(SeatOpened(0, SamplingParams(seed=0), (), (1,) * 50, ()))
    plan.page_updates.append(PageUpdate(0, 0, tuple(range(13))))
    ModelRunner(composed(ReferenceAttention()), pool, limits).run(plan)
    assert [cache.data_ptr() for layer in pool.layers for cache in layer] == before
    assert all(bool(torch.isfinite(cache[:12]).all()) for layer in pool.layers for cache in layer)
