"""Which instructions this processor has: kernels and arithmetic are chosen by it at start, never by build.

Linux tells in ``/proc/cpuinfo``, macOS in ``sysctl``. Where neither answers, no feature is assumed beyond the
architecture itself, so that the slowest choice still runs.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sapwood_engine.errors import ConfigError

Architecture = Literal["x86_64", "arm64", "other"]

_ARCHITECTURES: dict[str, Architecture] = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "arm64": "arm64",
    "aarch64": "arm64",
}
_AVX2_STEP = ("avx2", "fma", "f16c")
_AVX512_STEP = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
LIMIT_VARIABLE = "SAPWOOD_INSTRUCTION_SET"
"""Environment variable that makes a processor pass for a lesser one: narrower kernels can be tested on it."""
LIMITS: Mapping[str, tuple[str, ...]] = {
    "avx2": ("avx512", "avx_vnni", "amx"),
    "avx512": ("avx512_bf16", "avx512_vnni", "avx_vnni", "amx"),
    "avx512-bf16": ("amx",),
}
"""Its values, and how the flags begin that each takes away."""
_SYSCTL_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CpuFeatures:
    """The architecture and its flags, spelt as Linux spells them: ``avx512_bf16``, ``amx_bf16``."""

    architecture: Architecture
    flags: frozenset[str]

    @property
    def avx2(self) -> bool:
        """AVX2 with FMA and half-precision conversion: what the 8-lane kernels emit."""
        return self.architecture == "x86_64" and self.flags.issuperset(_AVX2_STEP)

    @property
    def avx512(self) -> bool:
        """AVX-512 with byte, double-word and vector-length instructions: what the 16-lane kernels emit."""
        return self.avx2 and self.flags.issuperset(_AVX512_STEP)

    @property
    def avx512_bf16(self) -> bool:
        """``vdpbf16ps``: pairs of bfloat16 multiplied into float32 lanes."""
        return self.avx512 and "avx512_bf16" in self.flags

    @property
    def amx_bf16(self) -> bool:
        """Tile products of bfloat16."""
        return self.architecture == "x86_64" and self.flags.issuperset(("amx_tile", "amx_bf16"))

    @property
    def native_bf16(self) -> bool:
        """Whether torch multiplies bfloat16 faster than float32 here; without it the products are emulated.

        Arm's ``bf16`` flag does not count: nobody has measured it for Sapwood.
        """
        return self.avx512_bf16 or self.amx_bf16

    @property
    def instruction_set(self) -> str:
        """The strongest set found, for people."""
        if self.amx_bf16:
            return "AMX-BF16"
        if self.avx512_bf16:
            return "AVX512-BF16"
        if self.avx512:
            return "AVX-512"
        if self.avx2:
            return "AVX2"
        return "NEON" if self.architecture == "arm64" else f"plain {self.architecture}"


def parse_cpuinfo(text: str, machine: str) -> CpuFeatures:
    """Read a ``/proc/cpuinfo``; ``machine`` as `platform.machine` gives it.

    x86 names the line ``flags``, Arm ``Features``. Cores that differ (big and little) are reduced to what all
    have.
    """
    lines = [line.partition(":") for line in text.splitlines()]
    sets = [frozenset(v.split()) for k, _, v in lines if k.strip() in ("flags", "Features")]
    return CpuFeatures(_architecture(machine), frozenset.intersection(*sets) if sets else frozenset())


def parse_sysctl(text: str, machine: str) -> CpuFeatures:
    """Read the output of macOS's ``sysctl machdep.cpu hw.optional``, ``name: value`` a line."""
    flags: set[str] = set()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in ("machdep.cpu.features", "machdep.cpu.leaf7_features"):
            flags.update(value.lower().split())
        elif name.startswith("hw.optional.") and value.strip() == "1":
            flags.add(name.rpartition(".")[2].lower().removeprefix("feat_"))
    return CpuFeatures(_architecture(machine), frozenset(flags))


def detect_cpu_features(
    cpuinfo: Path = Path("/proc/cpuinfo"), environment: Mapping[str, str] = os.environ
) -> CpuFeatures:
    """Return the features of the processor that this runs on, less what LIMIT_VARIABLE takes away.

    Raises `ConfigError` where that variable holds what it cannot.
    """
    machine = platform.machine()
    if platform.system() == "Darwin":
        found = parse_sysctl(_sysctl(), machine)
    else:
        try:
            found = parse_cpuinfo(cpuinfo.read_text(encoding="utf-8", errors="replace"), machine)
        except OSError:
            found = CpuFeatures(_architecture(machine), frozenset())
    return limited(found, environment.get(LIMIT_VARIABLE, ""))


def limited(features: CpuFeatures, limit: str) -> CpuFeatures:
    """Return ``features`` without what goes beyond ``limit``, a key of LIMITS; all of them where it is empty."""
    if not limit:
        return features
    if limit not in LIMITS:
        raise ConfigError(LIMIT_VARIABLE, limit, f"take one of {', '.join(LIMITS)}, or leave it out")
    beyond = LIMITS[limit]
    return CpuFeatures(features.architecture, frozenset(f for f in features.flags if not f.startswith(beyond)))


def _architecture(machine: str) -> Architecture:
    return _ARCHITECTURES.get(machine.lower(), "other")


def _sysctl() -> str:
    try:
        done = subprocess.run(
            ["sysctl", "machdep.cpu", "hw.optional"],
            capture_output=True,
            text=True,
            timeout=_SYSCTL_TIMEOUT_SECONDS,
            check=False,  # sysctl fails as a whole where one name is unknown, and still prints the others
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
