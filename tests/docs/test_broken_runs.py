"""What `.ci/run` finds to run again after a run of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import pytest
from support_broken_runs import forget_failures_of_a_broken_run

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    forget_failures_of_a_broken_run(session, exitstatus)
"""
FAILS = "def test_fails():\n    assert False\n"


@pytest.mark.parametrize(
    ("after", "left"),
    [
        ("def test_passes():\n    pass\n", ["test_a.py::test_fails"]),
        ("def test_interrupts():\n    raise KeyboardInterrupt\n", []),
        ("raise OSError", []),
    ],
)
def test_failures_are_left_to_run_again_where_the_run_came_to_its_end(
    after: str, left: list[str], tmp_path: Path
) -> None:
    for name, text in {
        "pytest.ini": "[pytest]",
        "conftest.py": CONFTEST,
        "test_a.py": FAILS,
        "test_b.py": after,
    }.items():
        (tmp_path / name).write_text(text)
    path = os.pathsep.join(name for name in sys.path if name.endswith("tests/support"))
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=tmp_path,
        env={"CI": "true", "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=False,
        capture_output=True,
    )
    assert list(json.loads((tmp_path / ".pytest_cache/v/cache/lastfailed").read_text())) == left
