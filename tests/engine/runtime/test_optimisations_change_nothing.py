"""Every optimisation switched on and off, over the real executor in float32: the same tokens, greedy and drawn."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
from support_torch_executor import capacity, tiny_decoder, tiny_executor

from sapwood_engine.core.admission import Accepted, SchedulerConfig
from sapwood_engine.core.ports import Executor
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace, Request, RequestId, SamplingParams, StopRules
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.core.step import Admitted, Preempted
from sapwood_engine.kernels.attention.base import AttentionBackend
from sapwood_engine.kernels.attention.reference import ReferenceAttention
from sapwood_engine.kernels.attention.select import select
from sapwood_engine.kernels.cpu_features import detect_cpu_features
from sapwood_engine.models.decoder import ComposedModel

MODEL = tiny_decoder()


@dataclass(frozen=True, slots=True)
class Switches:
    cache: bool = False
    partial_pages: bool = False
    chunking: bool = False
    overlap: bool = False
    batching: bool = False
    preemption: bool = False
    page_size: int = 4


ALL_OFF = Switches()
ALL_ON = Switches(True, True, True, True, True, True)
SINGLE = [replace(ALL_OFF, **{name: True}) for name in ("cache", "chunking", "overlap", "batching")]
WITHOUT = [replace(ALL_ON, **{name: False}) for name in ("cache", "partial_pages", "chunking", "overlap", "batching")]
PAGE_SIZES = [replace(ALL_ON, page_size=size) for size in (1, 16, 64)]


@dataclass(slots=True)
class Observed:
    tokens: dict[str, list[int]]
    num_cached: int = 0
    num_preempted: int = 0
    most_rows: int = 0


def requests() -> list[Request]:
    """Prompts that share beginnings, repeat, diverge inside a page; greedy, drawn and penalised."""
    system = tuple((7 * i + 3) % 197 for i in range(37))
    prompts = [
        (*system, 5, 6, 7),
        (*system, 5, 6, 7),
        (*system[:18], 150),
        (*system, 5, 9),
        tuple(range(100, 160)),
        (42,),
        (*system, 5, 6, 7),
        system[:36],
    ]
    samplings = [
        SamplingParams(seed=1, temperature=0.0),
        SamplingParams(seed=2, temperature=1.3),
        SamplingParams(seed=3, temperature=0.8, top_k=20, top_p=0.9),
        SamplingParams(seed=4, temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.4),
        SamplingParams(seed=5, temperature=1.0, min_p=0.02, presence_penalty=0.6),
        SamplingParams(seed=6, temperature=0.0, logit_bias=((17, 3.0), (3, -100.0))),
        SamplingParams(seed=2, temperature=1.3),
        SamplingParams(seed=8, temperature=1.0),
    ]
    return [
        Request(
            RequestId(f"r{i}"),
            Namespace("m"),
            prompt,
            sampling,
            StopRules(24, min_tokens=6, stop_token_ids=frozenset({11})),
        )
        for i, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
    ]


def serve(switches: Switches, attention: AttentionBackend | None = None) -> Observed:
    """Run all requests to their end."""
    # A pool that barely holds two requests makes the scheduler send running ones back.
    num_tokens = 160 if switches.preemption else 1280
    limits = capacity(num_pages=num_tokens // switches.page_size, page_size=switches.page_size, max_step_tokens=96)
    executor = tiny_executor(limits, model=ComposedModel(MODEL, attention or ReferenceAttention()))
    cache = PrefixCache(
        num_pages=limits.num_pages,
        page_size=limits.page_size,
        enabled=switches.cache,
        partial_pages=switches.partial_pages,
    )
    config = SchedulerConfig(
        policy="fcfs",
        max_running=8 if switches.batching else 1,
        max_step_tokens=limits.max_step_tokens,
        chunk_tokens=7 if switches.chunking else 96,
        headroom_tokens=4,
        min_shared_tokens=4,
    )
    try:
        return _drive(Scheduler(config, limits, cache), executor, overlap=switches.overlap)
    finally:
        executor.close()


def _drive(scheduler: Scheduler, executor: Executor, *, overlap: bool) -> Observed:
    observed = Observed({request.request_id: [] for request in requests()})
    for request in requests():
        assert isinstance(scheduler.submit(request, 0.0), Accepted)
    num_in_flight = 0
    for now in itertools.count(1):
        if not scheduler.has_work():
            break
        plan = scheduler.plan(float(now))
        if plan is not None:
            executor.launch(plan)
            num_in_flight += 1
            observed.most_rows = max(observed.most_rows, len(plan.seats))
            for event in plan.events:
                observed.num_cached += event.num_cached_tokens if isinstance(event, Admitted) else 0
                observed.num_preempted += isinstance(event, Preempted)
        if num_in_flight and (not overlap or plan is None or num_in_flight == 2):
            num_in_flight -= 1
            for output in scheduler.commit(executor.collect()):
                observed.tokens[output.request_id] += output.token_ids
        assert scheduler.check_invariants() == []
    return observed


@pytest.fixture(scope="module")
def plain() -> Observed:
    return serve(ALL_OFF)


@pytest.mark.parametrize("switches", [ALL_ON, *SINGLE, *WITHOUT, *PAGE_SIZES], ids=str)
def test_the_tokens_are_those_of_the_plain_engine(switches: Switches, plain: Observed) -> None:
    assert serve(switches).tokens == plain.tokens


def test_the_plain_engine_does_without_and_the_full_one_makes_use_of_everything(plain: Observed) -> None:
    """Otherwise the comparison above compares nothing."""
    full = serve(ALL_ON)
    assert (plain.num_cached, plain.num_preempted, plain.most_rows) == (0, 0, 1)
    assert full.num_cached > 100
    assert full.num_preempted > 0
    assert full.most_rows > 2


def test_two_requests_alike_get_the_same_and_other_seeds_get_other_tokens(plain: Observed) -> None:
    assert plain.tokens["r1"] == plain.tokens["r6"]
    assert plain.tokens["r0"] != plain.tokens["r1"]
    assert all(6 <= len(tokens) <= 24 for tokens in plain.tokens.values())


@pytest.mark.parametrize("switches", [ALL_OFF, ALL_ON], ids=["off", "on"])
def test_compiled_attention_gives_the_same_tokens(
    switches: Switches, plain: Observed, pytestconfig: pytest.Config
) -> None:
    assert pytestconfig.cache is not None
    choice = select(
        "cpu",
        detect_cpu_features(),
        head_dim=8,
        num_threads=2,
        cache_folder=pytestconfig.cache.mkdir("kernels"),
    )
    assert serve(switches, choice.make()).tokens == plain.tokens
