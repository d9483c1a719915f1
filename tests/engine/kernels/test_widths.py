"""What this processor passes, it passes as a lesser one too: the compiled step's tests, once a narrower width."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sapwood_engine.kernels.cpu_features import LIMIT_VARIABLE, LIMITS, detect_cpu_features, limited

FOLDER = Path(__file__).parent
QUICK = (FOLDER / "cpu_step", FOLDER.parent / "models" / "test_compiled.py")
"""The kernels, and every family over them."""


@pytest.mark.parametrize("width", LIMITS)
def test_the_compiled_step_is_right_on_a_narrower_processor(width: str) -> None:
    here = detect_cpu_features()
    if limited(here, width).instruction_set == here.instruction_set:
        pytest.skip(f"this processor has nothing beyond {here.instruction_set}")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "--quiet", *QUICK],
        env=os.environ | {LIMIT_VARIABLE: width},
        cwd=FOLDER.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
