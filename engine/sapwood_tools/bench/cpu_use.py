"""Who used the processors while something was measured.

A number measured while another program had a core is not a number. So each measurement says how many cores
went to anything but the measured server and this client, and how many the hypervisor took away.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_INTERESTING_FLAGS = (
    "avx2",
    "f16c",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "asimd",
    "sve",
)


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Cores in use on average over an interval."""

    server_cores: float
    client_cores: float
    foreign_cores: float
    """Busy with neither the server nor this client: other programs, the kernel for nobody in particular."""
    stolen_cores: float
    """Wanted by this machine and given to another one by the hypervisor."""


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    busy_seconds: float
    stolen_seconds: float
    server_seconds: float
    client_seconds: float


class CpuMeter:
    """Measures from its making to `read`; ``processes`` are the server's, all of them, alive throughout."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self._processes = processes
        self._start = self._take()

    def read(self) -> CpuUse:
        """Return the use since this meter was made."""
        end, start = self._take(), self._start
        seconds = max(end.at - start.at, 1e-9)
        server = end.server_seconds - start.server_seconds
        client = end.client_seconds - start.client_seconds
        # Two clocks of the kernel that tick at different moments: their difference can be a little below
        # zero.
        foreign = max(0.0, end.busy_seconds - start.busy_seconds - server - client)
        return CpuUse(
            server_cores=server / seconds,
            client_cores=client / seconds,
            foreign_cores=foreign / seconds,
            stolen_cores=(end.stolen_seconds - start.stolen_seconds) / seconds,
        )

    def _take(self) -> _Reading:
        machine = psutil.cpu_times()
        interrupts = getattr(machine, "irq", 0.0) + getattr(machine, "softirq", 0.0)
        own = os.times()
        return _Reading(
            at=time.perf_counter(),
            busy_seconds=machine.user + machine.system + getattr(machine, "nice", 0.0) + interrupts,
            stolen_seconds=getattr(machine, "steal", 0.0),
            server_seconds=sum(_cpu_seconds(process) for process in self._processes),
            client_seconds=own.user + own.system,
        )


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def available_cores() -> int:
    """Return the physical cores that this process may use, at least 1."""
    physical = psutil.cpu_count(logical=False) or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return min(physical, allowed)


def machine_facts() -> dict[str, object]:
    """Return what the numbers depend on: processor, its vector instructions, cores, memory, interpreter."""
    name, flags = _processor()
    return {
        "processor": name,
        "instructions": [flag for flag in _INTERESTING_FLAGS if flag in flags],
        "cores": available_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> tuple[str, frozenset[str]]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # no such file outside Linux
        return platform.processor(), frozenset()
    fields = dict(reversed([(key.strip(), value.strip()) for key, _, value in (s.partition(":") for s in lines)]))
    flags = fields.get("flags", fields.get("Features", ""))
    return fields.get("model name", platform.processor()), frozenset(flags.split())
