"""What the operating system says of the processor decides the arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sapwood_contract.launch import DtypeName
from sapwood_engine.errors import ConfigError
from sapwood_engine.kernels.arithmetic import choose_dtype
from sapwood_engine.kernels.cpu_features import (
    CpuFeatures,
    detect_cpu_features,
    limited,
    parse_cpuinfo,
    parse_sysctl,
)

AVX2 = "fpu sse2 avx f16c fma avx2"
AVX512 = f"{AVX2} avx512f avx512dq avx512bw avx512vl"


def x86(flags: str) -> CpuFeatures:
    return parse_cpuinfo(f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\n", "x86_64")


@pytest.mark.parametrize(
    ("flags", "instruction_set", "native_bf16"),
    [
        ("fpu sse2", "plain x86_64", False),
        ("fpu sse2 avx2", "plain x86_64", False),
        (AVX2, "AVX2", False),
        (f"{AVX2} avx512f", "AVX2", False),
        (AVX512, "AVX-512", False),
        (f"{AVX512} avx512_bf16", "AVX512-BF16", True),
        (f"{AVX512} avx512_bf16 amx_tile amx_bf16", "AMX-BF16", True),
        (f"{AVX2} avx512_bf16", "AVX2", False),
    ],
)
def test_the_strongest_instruction_set_is_found(flags: str, instruction_set: str, native_bf16: bool) -> None:
    features = x86(flags)
    assert (features.instruction_set, features.native_bf16) == (instruction_set, native_bf16)


def test_cores_that_differ_count_as_the_weakest() -> None:
    text = f"flags\t: {AVX512} avx512_bf16\n\nflags\t: {AVX2}\n"
    assert parse_cpuinfo(text, "x86_64").instruction_set == "AVX2"


def test_arm_is_read_from_either_system_and_never_counts_as_native_bfloat16() -> None:
    linux = parse_cpuinfo("Features\t: fp asimd bf16 i8mm\n", "aarch64")
    apple = parse_sysctl("hw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_SME: 0\n", "arm64")
    assert linux.architecture == apple.architecture == "arm64"
    assert "bf16" in linux.flags
    assert apple.flags == {"bf16"}
    assert not linux.native_bf16
    assert not apple.native_bf16
    assert apple.instruction_set == "NEON"


def test_an_intel_mac_is_read_from_sysctl() -> None:
    text = "machdep.cpu.features: FPU SSE2 FMA F16C\nmachdep.cpu.leaf7_features: AVX2 BMI2\n"
    assert parse_sysctl(text, "x86_64").instruction_set == "AVX2"


def test_a_system_that_says_nothing_has_no_features(tmp_path: Path) -> None:
    assert parse_cpuinfo("", "riscv64") == CpuFeatures("other", frozenset())
    assert not detect_cpu_features(tmp_path / "absent").avx2


@pytest.mark.parametrize(
    ("requested", "flags", "dtype"),
    [
        ("auto", AVX2, torch.float32),
        ("auto", AVX512, torch.float32),
        ("auto", f"{AVX512} avx512_bf16", torch.bfloat16),
        ("bfloat16", AVX2, torch.bfloat16),
        ("float16", AVX2, torch.float16),
        ("float32", f"{AVX512} avx512_bf16", torch.float32),
    ],
)
def test_auto_is_bfloat16_only_where_it_is_native(requested: DtypeName, flags: str, dtype: torch.dtype) -> None:
    choice = choose_dtype(requested, x86(flags))
    assert choice.dtype == dtype
    assert choice.reason


def test_a_processor_can_pass_for_a_lesser_one() -> None:
    wide = x86(f"{AVX512} avx512_bf16 avx512_vnni amx_tile amx_bf16")
    assert limited(wide, "") == wide
    assert [limited(wide, name).instruction_set for name in ("avx512-bf16", "avx512", "avx2")] == [
        "AVX512-BF16",
        "AVX-512",
        "AVX2",
    ]
    assert limited(x86(AVX2), "avx512") == x86(AVX2)


def test_an_unknown_limit_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"SAPWOOD_INSTRUCTION_SET.*'avx3'.*avx2, avx512, avx512-bf16"):
        limited(x86(AVX2), "avx3")
