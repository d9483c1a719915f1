"""From a checkpoint on disk to tokens, against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support_checkpoints import VOCAB_SIZE, tiny_model

from sapwood_contract.launch import LaunchOptions
from sapwood_engine.checkpoint.source import open_checkpoint
from sapwood_engine.config import EngineConfig, engine_config
from sapwood_engine.core.request import SamplingParams
from sapwood_engine.core.step import PENDING_TOKEN, PageUpdate, SeatOpened, StepPlan
from sapwood_engine.errors import ConfigError
from sapwood_engine.kernels.cpu_features import CpuFeatures
from sapwood_engine.runtime.computation import choose_kv_dtype
from sapwood_engine.runtime.start import Started, build_executor

PROMPT = (5, 77, 31, 8, 120, 9, 44)
AVX2 = CpuFeatures("x86_64", frozenset({"avx2", "fma", "f16c"}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny_model("llama").save_pretrained(path)
    return path


def config(folder: Path, **options: object) -> EngineConfig:
    values = {"model": str(folder), "kv_tokens": 256, "page_size": 4, "max_running": 4, "threads": 1} | options
    return engine_config(LaunchOptions(**values))  # type: ignore[arg-type]  # checked there


def start(folder: Path, phases: list[str], kernels: Path, **options: object) -> Started:
    return build_executor(
        config(folder, **options),
        open_checkpoint(str(folder)),
        kernel_cache=kernels,
        progress=lambda phase, _detail, _fraction: phases.append(phase),
    )


def generate(started: Started, count: int) -> list[int]:
    executor = started.executor
    greedy = SamplingParams(seed=0, temperature=0.0)
    length = len(PROMPT)
    plan = StepPlan(7, "prefill", [1], [0], [length], list(PROMPT), [True])
    plan.opened.append(SeatOpened(1, greedy, (), PROMPT, ()))
    plan.page_updates.append(PageUpdate(1, 0, tuple(range(20, 30))))
    executor.launch(plan)
    tokens = executor.collect().token_ids
    for position in range(length, length + count - 1):
        executor.launch(StepPlan(position + 10, "decode", [1], [position], [1], [PENDING_TOKEN], [True]))
        tokens += executor.collect().token_ids
    executor.close()
    return tokens


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_started_executor_generates_what_transformers_does(
    folder: Path, backend: str, pytestconfig: pytest.Config
) -> None:
    assert pytestconfig.cache is not None
    phases: list[str] = []
    kernels = pytestconfig.cache.mkdir("kernels")
    started = start(folder, phases, kernels, dtype="float32", attention_backend=backend)
    theirs = tiny_model("llama").generate(torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert generate(started, 8) == theirs[0, len(PROMPT) :].tolist()
    assert list(dict.fromkeys(phases)) == ["weights", "kernels", "warm"]
    assert set(started.seconds) == {"weights", "kernels", "warm"}
    assert started.facts["attention"] == f"{backend} (as requested)"
    assert "float32" in started.facts["arithmetic"]
    assert started.facts["KV cache"] == "float32 (as the arithmetic)"
    assert "context" not in started.facts
    assert "kernels" not in started.facts
    assert started.executor.capacity.vocab_size == VOCAB_SIZE


def test_the_fastest_choices_generate_too(folder: Path, pytestconfig: pytest.Config) -> None:
    assert pytestconfig.cache is not None
    started = start(folder, [], pytestconfig.cache.mkdir("kernels"))
    assert all(0 <= token < VOCAB_SIZE for token in generate(started, 4))


def test_a_context_that_the_sliding_window_cut_and_kernels_that_cannot_be_kept_are_told(tmp_path: Path) -> None:
    tiny_model("mistral", sliding_window=64).save_pretrained(tmp_path / "windowed")
    no_folder = tmp_path / "file"
    no_folder.touch()
    started = start(tmp_path / "windowed", [], no_folder, attention_backend="cpu")
    assert started.executor.capacity.max_context_tokens == 64
    assert "sliding window" in started.facts["context"]
    assert str(no_folder) in started.facts["kernels"]


@pytest.mark.parametrize(
    ("scale", "dtype", "kept_as"), [(1.0, "auto", "float16"), (1e5, "auto", "bfloat16"), (1e5, "float16", "bfloat16")]
)
def test_keys_beyond_float16_are_kept_as_bfloat16(
    tmp_path: Path, pytestconfig: pytest.Config, scale: float, dtype: str, kept_as: str
) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.v_proj.weight *= scale
    model.half().save_pretrained(tmp_path)
    assert pytestconfig.cache is not None
    started = start(tmp_path, [], pytestconfig.cache.mkdir("kernels"), dtype=dtype)
    assert started.facts["KV cache"].startswith(kept_as)
    assert all(0 <= token < VOCAB_SIZE for token in generate(started, 4))


def test_what_cannot_fit_is_refused_before_anything_runs(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--context-length"):
        start(folder, [], tmp_path, context_length=100, kv_tokens=64, attention_backend="reference")


@pytest.mark.parametrize(
    ("requested", "arithmetic", "wanted"),
    [
        ("auto", torch.float32, torch.float16),
        ("float32", torch.float32, torch.float32),
        ("auto", torch.bfloat16, torch.bfloat16),
        ("float16", torch.float16, torch.float16),
    ],
)
def test_keys_and_values_are_narrower_than_the_arithmetic_only_where_nobody_asked_for_float32(
    folder: Path, requested: str, arithmetic: torch.dtype, wanted: torch.dtype
) -> None:
    assert choose_kv_dtype(arithmetic, config(folder, dtype=requested), AVX2)[0] == wanted
