"""Which way a model is computed, and what the ready card says of the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support_checkpoints import tiny_model

from sapwood_contract.launch import LaunchOptions
from sapwood_engine.checkpoint.source import open_checkpoint, open_tensors, read_spec
from sapwood_engine.checkpoint.spec import ModelSpec
from sapwood_engine.config import engine_config
from sapwood_engine.errors import ConfigError
from sapwood_engine.kernels.cpu_features import CpuFeatures
from sapwood_engine.models.decoder import ComposedModel, Decoder
from sapwood_engine.models.load import load_model
from sapwood_engine.runtime.computation import Computation, build_computation

AVX2 = CpuFeatures("x86_64", frozenset({"avx2", "fma", "f16c"}))
OLD = CpuFeatures("x86_64", frozenset({"sse4_2"}))
ARM = CpuFeatures("arm64", frozenset())
NO_AVX2 = "it needs AVX2 with FMA and F16C, or NEON; this processor is plain x86_64"


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.float16, torch.float32], ids=str)
def any_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tiny"), request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tiny"), torch.bfloat16)


def write(path: Path, dtype: torch.dtype) -> Path:
    tiny_model("llama").to(dtype).save_pretrained(path)
    return path


def build(
    folder: Path,
    config: pytest.Config,
    features: CpuFeatures = AVX2,
    changes: dict[str, Any] | None = None,
    **options: object,
) -> Computation:
    """``changes``: of the spec; ``options``: of the launch."""
    assert config.cache is not None
    values = {"model": str(folder), "kv_tokens": 64, "max_running": 2, "threads": 1, "max_step_tokens": 32} | options
    checkpoint = open_checkpoint(str(folder))
    spec: ModelSpec = replace(read_spec(checkpoint), **(changes or {}))
    tensors = open_tensors(checkpoint)

    def load(dtype: torch.dtype) -> Decoder:
        return load_model(spec, tensors, where="tiny", dtype=dtype)

    return build_computation(
        engine_config(LaunchOptions(**values)),  # type: ignore[arg-type]  # checked there
        spec,
        tensors,
        features,
        load=load,
        num_threads=1,
        kernel_cache=config.cache.mkdir("kernels"),
    )


def is_compiled(computation: Computation) -> bool:
    """Whether the step is; what its facts say is checked to be the same."""
    composed = isinstance(computation.model, ComposedModel)
    assert computation.facts["step"].startswith("torch operators" if composed else "compiled for")
    assert ("attention" in computation.facts) is composed
    return not composed


@pytest.mark.parametrize("features", [AVX2, ARM])
@pytest.mark.parametrize("cpu_step", ["auto", "on"])
def test_the_compiled_step_is_taken_where_nothing_is_in_the_way(
    folder: Path, features: CpuFeatures, cpu_step: str, pytestconfig: pytest.Config
) -> None:
    computation = build(folder, pytestconfig, features, cpu_step=cpu_step)
    assert is_compiled(computation)
    assert computation.compiles
    assert computation.facts["step"] == f"compiled for {features.instruction_set}"


def test_weights_keep_the_checkpoints_own_16_bits(any_folder: Path, pytestconfig: pytest.Config) -> None:
    computation = build(any_folder, pytestconfig)
    stored = {tensor.dtype for tensor in open_tensors(open_checkpoint(str(any_folder))).values()}
    wanted = "float16" if stored == {"F16"} else "bfloat16"
    assert computation.facts["arithmetic"].startswith(f"{wanted} weights, ")
    # Keys and values are what the products are: bfloat16 beside bfloat16, float16 beside float32.
    products = computation.facts["arithmetic"].partition("products of ")[2]
    in_pairs = products.startswith("bfloat16")
    assert computation.kv_dtype == (torch.bfloat16 if in_pairs else torch.float16)
    assert computation.kv_reason == (
        "as the products" if in_pairs else "half the memory of float32, and finer than bfloat16"
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_of_the_16_bits_that_were_asked_for(
    any_folder: Path, dtype: str, pytestconfig: pytest.Config
) -> None:
    computation = build(any_folder, pytestconfig, dtype=dtype)
    assert is_compiled(computation)
    assert computation.facts["arithmetic"].startswith(f"{dtype} weights, ")


HINDRANCES = {
    "another backend of attention": ({"attention_backend": "reference"}, AVX2, {}, "--attention-backend=reference"),
    "the backend of torch's operators": ({"attention_backend": "cpu"}, AVX2, {}, "--attention-backend=cpu"),
    "float32": ({"dtype": "float32"}, AVX2, {}, "it has 16-bit weights, and these are float32"),
    "an old processor": ({}, OLD, {}, NO_AVX2),
    "another activation": (
        {},
        AVX2,
        {"activation": "gelu"},
        "it has the activations silu, gelu_tanh, and this is gelu",
    ),
}
"""Launch options, processor, changes of the model, and the reason that is told."""


@pytest.mark.parametrize("name", HINDRANCES)
def test_torchs_operators_are_taken_with_the_reason_told_where_something_is_in_the_way(
    folder: Path, name: str, pytestconfig: pytest.Config
) -> None:
    options, features, changes, reason = HINDRANCES[name]
    computation = build(folder, pytestconfig, features, changes, **options)
    assert not is_compiled(computation)
    assert computation.facts["step"] == f"torch operators (not compiled: {reason})"


@pytest.mark.parametrize("name", HINDRANCES)
def test_a_step_that_was_asked_for_and_cannot_be_had_is_refused(
    folder: Path, name: str, pytestconfig: pytest.Config
) -> None:
    options, features, changes, reason = HINDRANCES[name]
    with pytest.raises(ConfigError) as refused:
        build(folder, pytestconfig, features, changes, cpu_step="on", **options)
    assert "--cpu-step" in str(refused.value)
    assert reason in str(refused.value)


def test_switched_off_it_is_torchs_operators_whatever_could_be_had(folder: Path, pytestconfig: pytest.Config) -> None:
    computation = build(folder, pytestconfig, cpu_step="off")
    assert not is_compiled(computation)
    assert computation.facts["step"] == "torch operators (not compiled: --cpu-step=off)"
