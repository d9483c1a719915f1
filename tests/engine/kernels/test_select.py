from __future__ import annotations

from pathlib import Path

import pytest

from sapwood_contract.launch import AttentionBackendName
from sapwood_engine.errors import ConfigError
from sapwood_engine.kernels.attention.select import AttentionChoice, select
from sapwood_engine.kernels.cpu_features import CpuFeatures

AVX2 = CpuFeatures("x86_64", frozenset({"avx2", "fma", "f16c"}))
OLD = CpuFeatures("x86_64", frozenset({"sse4_2"}))
ARM = CpuFeatures("arm64", frozenset())


def choose(requested: AttentionBackendName, features: CpuFeatures, head_dim: int = 64) -> AttentionChoice:
    return select(requested, features, head_dim=head_dim, num_threads=1, cache_folder=Path("unused"))


@pytest.mark.parametrize(
    ("requested", "features", "head_dim", "name", "reason"),
    [
        ("auto", AVX2, 64, "cpu", "AVX2"),
        ("auto", ARM, 64, "cpu", "NEON"),
        ("auto", OLD, 64, "reference", "need AVX2"),
        ("auto", AVX2, 30, "reference", "head_dim in multiples of 4; the model has 30"),
        ("cpu", AVX2, 64, "cpu", "as requested"),
        ("reference", AVX2, 64, "reference", "as requested"),
    ],
)
def test_the_choice_follows_request_processor_and_model(
    requested: AttentionBackendName, features: CpuFeatures, head_dim: int, name: str, reason: str
) -> None:
    choice = choose(requested, features, head_dim)
    assert choice.name == name
    assert reason in choice.reason


def test_a_backend_that_cannot_run_here_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"--attention-backend.*AVX2"):
        choose("cpu", OLD)


def test_the_reference_is_made_without_touching_the_cache() -> None:
    assert choose("reference", OLD).make().name == "reference"
