"""Every optimisation switched on and off, over the real executor: the same tokens, greedy and drawn.

With torch's operators in float32, with the compiled step in 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from support_compiled_models import WEIGHT_DTYPES, Compiled, compile_decoder
from support_serving import Observed, drive
from support_torch_executor import TINY, capacity, tiny_decoder, tiny_executor

from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace, Request, RequestId, SamplingParams, StopRules
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.kernels.attention.reference import ReferenceAttention
from sapwood_engine.kernels.attention.select import select
from sapwood_engine.kernels.cpu_features import detect_cpu_features
from sapwood_engine.models.decoder import ComposedModel
from sapwood_engine.runtime.model_runner import Model

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


def requests_with_much_in_common() -> list[Request]:
    """Prompts longer than a part of attention's keys, so that whole parts are shared."""
    system = tuple((11 * i + 5) % 193 for i in range(300))
    prompts = [(*system, 3, 4), (*system, 5), system, (*system[:280], 9), (*system, 5, 6, 7), system[:290]]
    return [
        Request(
            RequestId(f"r{i}"),
            Namespace("m"),
            prompt,
            SamplingParams(seed=i, temperature=i % 2),
            StopRules(12, stop_token_ids=frozenset({11})),
        )
        for i, prompt in enumerate(prompts)
    ]


def serve(
    switches: Switches,
    model: Model | None = None,
    *,
    kv_dtype: torch.dtype = torch.float32,
    asked: Sequence[Request] | None = None,
) -> Observed:
    """Run all requests to their end, over the reference in float32 unless said."""
    asked = asked or requests()
    num_tokens = 1280
    # A pool that barely holds two requests makes the scheduler send running ones back.
    if switches.preemption:
        num_tokens = 160 if max(len(request.prompt_ids) for request in asked) < 100 else 640
    limits = capacity(
        num_pages=num_tokens // switches.page_size, page_size=switches.page_size, max_step_tokens=96, context=512
    )
    executor = tiny_executor(limits, model=model or ComposedModel(MODEL, ReferenceAttention()), kv_dtype=kv_dtype)
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
        return drive(Scheduler(config, limits, cache), executor, asked, overlap=switches.overlap)
    finally:
        executor.close()


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
    assert serve(switches, ComposedModel(MODEL, choice.make())).tokens == plain.tokens


@pytest.fixture(scope="module", params=WEIGHT_DTYPES, ids=str)
def compiled(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Compiled:
    decoder = tiny_decoder(dtype=request.param)
    return compile_decoder(decoder, TINY, pytestconfig, max_rows=96)


@pytest.fixture(scope="module", params=["short prompts", "much in common"])
def asked(request: pytest.FixtureRequest) -> list[Request]:
    return requests() if request.param == "short prompts" else requests_with_much_in_common()


@pytest.fixture(scope="module")
def plainly_compiled(compiled: Compiled, asked: list[Request]) -> Observed:
    return serve(ALL_OFF, compiled.model, kv_dtype=compiled.kv_dtype, asked=asked)


@pytest.mark.parametrize("switches", [ALL_ON, *SINGLE, *WITHOUT, *PAGE_SIZES], ids=str)
def test_the_compiled_step_gives_exactly_the_same_tokens_in_16_bits(
    switches: Switches, compiled: Compiled, asked: list[Request], plainly_compiled: Observed
) -> None:
    served = serve(switches, compiled.model, kv_dtype=compiled.kv_dtype, asked=asked)
    assert served.tokens == plainly_compiled.tokens
    # Otherwise the comparison compares nothing.
    assert (served.most_rows > 1) is switches.batching
    assert (served.num_cached > 0) is switches.cache
