"""int8 weights are had where the compiled step is, told of on the ready card, and refused elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support_checkpoints import tiny_model

from sapwood_contract.launch import LaunchOptions
from sapwood_engine.checkpoint.source import open_checkpoint, open_tensors, read_spec
from sapwood_engine.config import engine_config
from sapwood_engine.errors import ConfigError
from sapwood_engine.kernels.cpu_features import CpuFeatures
from sapwood_engine.models.decoder import Decoder
from sapwood_engine.models.load import load_model
from sapwood_engine.runtime.computation import Computation, build_computation

AVX2 = CpuFeatures("x86_64", frozenset({"avx2", "fma", "f16c"}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny_model("llama").to(torch.bfloat16).save_pretrained(path)
    return path


def never(dtype: torch.dtype) -> Decoder:
    raise AssertionError(f"weights were loaded as {dtype}")


def build(folder: Path, config: pytest.Config, *, loads: bool, **options: str) -> Computation:
    assert config.cache is not None
    checkpoint = open_checkpoint(str(folder))
    spec, tensors = read_spec(checkpoint), open_tensors(checkpoint)

    def load(dtype: torch.dtype) -> Decoder:
        return load_model(spec, tensors, where="tiny", dtype=dtype)

    launch = LaunchOptions(model=str(folder), kv_tokens=64, max_running=2, max_step_tokens=32, **options)  # type: ignore[arg-type]  # checked there
    return build_computation(
        engine_config(launch),
        spec,
        tensors,
        AVX2,
        load=load if loads else never,
        num_threads=1,
        kernel_cache=config.cache.mkdir("kernels"),
    )


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16"])
def test_the_ready_card_tells_of_int8_weights(folder: Path, dtype: str, pytestconfig: pytest.Config) -> None:
    computation = build(folder, pytestconfig, loads=True, quantization="int8", dtype=dtype)
    assert computation.facts["step"] == "compiled for AVX2"
    assert computation.facts["arithmetic"].startswith("int8 weights (quantised at load), products of ")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cpu_step": "off"}, "--cpu-step=off"),
        ({"attention_backend": "reference"}, "--attention-backend=reference"),
        ({"dtype": "float32"}, "it has 16-bit weights, and these are float32"),
    ],
)
def test_int8_without_the_compiled_step_is_refused_before_weights_are_loaded(
    folder: Path, options: dict[str, str], reason: str, pytestconfig: pytest.Config
) -> None:
    with pytest.raises(ConfigError) as refused:
        build(folder, pytestconfig, loads=False, quantization="int8", **options)
    assert refused.value.option == "--quantization"
    assert reason in str(refused.value)
