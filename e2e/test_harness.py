"""The harness leaves nothing behind, however it ends. It starts small clusters of its own beside the one in use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import bringup
from cluster.layout import Layout, layout
from world import eventually


@pytest.fixture
def small(harness: Layout) -> Iterator[Layout]:
    """A name for another cluster, which does not outlive the test."""
    found = layout(f"{harness.name[:17]}-x", os.environ)
    yield found
    bringup.down(found)


def start(small: Layout, *command: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "cluster", "run", "--nodes=0", f"--name={small.name}", "--", *command]
    environment = {**os.environ, "PYTHONPATH": str(Path(bringup.__file__).parent.parent)}
    return subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def processes_of(small: Layout) -> list[str]:
    """Return the commands of all processes that name the cluster's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"{small.state}/" in command:
            found.append(command)
    return found


def test_a_command_runs_in_a_cluster_that_is_gone_afterwards(small: Layout) -> None:
    with start(small, "kubectl", "get", "--raw", "/readyz") as run:
        said, _ = run.communicate(timeout=180)
    assert (run.returncode, said) == (0, "ok")
    assert not processes_of(small)
    assert not small.netns_path.exists()
    assert not small.state.exists()


def test_a_failed_command_is_the_harnesss_failure_and_leaves_its_logs(small: Layout) -> None:
    with start(small, "false") as run:
        run.communicate(timeout=180)
    assert run.returncode == 1
    assert not processes_of(small)
    assert small.log("kube-apiserver").exists()


def test_a_harness_that_is_killed_takes_its_cluster_along(small: Layout) -> None:
    with start(small, "sh", "-c", "echo up; cat") as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        assert processes_of(small)
        run.send_signal(signal.SIGKILL)
    eventually(lambda: not processes_of(small), "the end of every process")
    assert not bringup.is_up(small)
    bringup.down(small)
    assert not small.netns_path.exists()
