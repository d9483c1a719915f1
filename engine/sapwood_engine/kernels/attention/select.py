"""Which attention backend runs here, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sapwood_contract.launch import AttentionBackendName
from sapwood_engine.errors import ConfigError
from sapwood_engine.kernels.attention.base import AttentionBackend
from sapwood_engine.kernels.attention.reference import ReferenceAttention
from sapwood_engine.kernels.cpu_features import CpuFeatures

_HEAD_DIM_MULTIPLE = 4


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """A backend not yet made, with the reason that the ready card shows."""

    name: str
    reason: str
    make: Callable[[], AttentionBackend]


def select(
    requested: AttentionBackendName,
    features: CpuFeatures,
    *,
    head_dim: int,
    num_threads: int,
    cache_folder: Path,
) -> AttentionChoice:
    """Return the backend asked for, or for ``auto`` the fastest that this processor runs.

    ``cache_folder`` is where compiled kernels are kept between starts. Raises `ConfigError` where what is asked for
    cannot run here.
    """

    def make_cpu() -> AttentionBackend:
        # numba takes two seconds to import, and looks at its settings when the kernels are imported.
        from sapwood_engine.kernels import compiled  # noqa: PLC0415

        compiled.use_cache(cache_folder)
        from sapwood_engine.kernels.attention.cpu import CpuAttention  # noqa: PLC0415

        return CpuAttention(num_threads)

    hindrance = _hindrance(features, head_dim)
    if requested == "cpu" and hindrance is not None:
        raise ConfigError("--attention-backend", requested, f"{hindrance}: take auto")
    if requested == "reference":
        return AttentionChoice("reference", "as requested", ReferenceAttention)
    if hindrance is not None:
        return AttentionChoice("reference", hindrance, ReferenceAttention)
    reason = "as requested" if requested == "cpu" else f"compiled for {features.instruction_set}"
    return AttentionChoice("cpu", reason, make_cpu)


def _hindrance(features: CpuFeatures, head_dim: int) -> str | None:
    """Return why the compiled kernels cannot run, or None."""
    if not features.avx2 and features.architecture != "arm64":
        return f"compiled kernels need AVX2 with FMA and F16C, or NEON; this processor is {features.instruction_set}"
    if head_dim % _HEAD_DIM_MULTIPLE != 0:
        return f"compiled kernels need head_dim in multiples of {_HEAD_DIM_MULTIPLE}; the model has {head_dim}"
    return None
