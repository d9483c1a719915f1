"""The builtin model over the compiled step: what it says depends on the request alone, and is what float32 says."""

from __future__ import annotations

import pytest
import torch
from support_compiled_models import Compiled, compile_decoder
from support_serving import drive
from support_smollm2 import load_smollm2, smollm2_prompts
from support_tiny_models import PagedModel, Run, greedy

from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace, Request, RequestId, SamplingParams, StopRules
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.runtime.executor import TorchExecutor
from sapwood_engine.runtime.kv_pool import KvPool
from sapwood_engine.runtime.model_runner import ModelRunner

pytestmark = pytest.mark.engine

NUM_TOKENS = 16
MAX_STEP_TOKENS = 512


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Of several kinds: every fourth."""
    return smollm2_prompts()[::4]


@pytest.fixture(scope="module")
def compiled(pytestconfig: pytest.Config) -> Compiled:
    return compile_decoder(*load_smollm2(torch.bfloat16), pytestconfig, max_logits=16)


def serve(compiled: Compiled, prompts: list[list[int]], *, at_once: int, temperature: float) -> dict[str, list[int]]:
    """Generate after every prompt, ``at_once`` of them together, nothing cached."""
    spec = compiled.spec
    limits = Capacity(200, 16, 128, at_once, MAX_STEP_TOKENS, spec.vocab_size)
    pool = KvPool(
        num_layers=spec.num_layers,
        num_pages=limits.num_pages,
        page_size=limits.page_size,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dtype=compiled.kv_dtype,
    )
    executor = TorchExecutor(limits, ModelRunner(compiled.model, pool, limits).run, num_threads=2, release=pool.release)
    config = SchedulerConfig(
        policy="fcfs", max_running=at_once, max_step_tokens=MAX_STEP_TOKENS, chunk_tokens=MAX_STEP_TOKENS
    )
    cache = PrefixCache(num_pages=limits.num_pages, page_size=limits.page_size, enabled=False)
    asked = [
        Request(
            RequestId(f"r{i}"),
            Namespace("m"),
            tuple(prompt),
            SamplingParams(seed=100 + i, temperature=temperature),
            StopRules(NUM_TOKENS),
        )
        for i, prompt in enumerate(prompts)
    ]
    try:
        observed = drive(Scheduler(config, limits, cache), executor, asked, overlap=False)
    finally:
        executor.close()
    assert observed.most_rows == at_once
    return observed.tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "drawn"])
def test_16_prompts_are_answered_alike_alone_and_in_a_batch_of_16(
    compiled: Compiled, prompts: list[list[int]], temperature: float
) -> None:
    assert len(prompts) == 16
    alone, together = (serve(compiled, prompts, at_once=count, temperature=temperature) for count in (1, 16))
    assert together == alone


def test_98_percent_of_tokens_are_the_float32_choice(compiled: Compiled, prompts: list[list[int]]) -> None:
    """By teacher forcing: after the float32 model's own words, what comes next?"""
    chosen = greedy(*load_smollm2(torch.float32), prompts, NUM_TOKENS).token_ids
    longest = max(map(len, prompts)) + NUM_TOKENS
    paged = PagedModel(
        compiled.model, compiled.spec, num_sequences=len(prompts), max_tokens=longest, dtype=compiled.kv_dtype
    )
    texts = [prompt + words[:-1] for prompt, words in zip(prompts, chosen, strict=True)]
    hidden = torch.split(paged.hidden([Run(s, 0, text) for s, text in enumerate(texts)]), [len(t) for t in texts])
    best = [compiled.model.logits(rows[-NUM_TOKENS:]).argmax(-1).tolist() for rows in hidden]
    equal = sum(a == b for x, y in zip(best, chosen, strict=True) for a, b in zip(x, y, strict=True))
    assert equal >= 0.98 * NUM_TOKENS * len(prompts)
