"""How many compute threads to use: more than the cores that this process may use only get in each other's way."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

NEEDED_ENVIRONMENT = {"OMP_DYNAMIC": "false"}
"""What it must hold: the compiled step's threads wait for each other, so none may be left out."""
SPIN_ENVIRONMENT = {"GOMP_SPINCOUNT": "4000"}
"""What the environment should hold before torch is imported, unless somebody set it: OpenMP reads it then.

A step is some 150 parallel regions, and by default threads spin for milliseconds at the ends of them. When another
program takes one of the cores, every region waits until a thread that was put aside is scheduled again. Threads that
soon sleep are scheduled as soon as they wake. On two cores, 16 streams of a 135M model: alone 41 ms a step either way;
beside one busy program 208 ms by default, 93 ms with this; one stream alone 25 and 26 ms.
"""


def default_num_threads(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the physical cores, cut to the affinity of this process and to its control group's quota; at least 1."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return max(1, math.ceil(min(physical, allowed, _quota(cgroup))))


def _quota(cgroup: Path) -> float:
    """Processors' worth of time that the control group grants; infinite where it does not say."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text()
        period = (cgroup / "cpu/cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError):
        return math.inf
