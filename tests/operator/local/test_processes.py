"""Processes of this machine, with real ones: how they end, what they leave, what they said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sapwood_operator.local.logs import MAX_BYTES, MAX_FILES, Logs
from sapwood_operator.local.processes import LocalProcess

WAITS = "import signal; print('up', flush=True); signal.pause()"
HAS_A_CHILD = f"""
import subprocess, sys, signal
child = subprocess.Popen([sys.executable, "-c", {WAITS!r}])
print(child.pid, flush=True)
signal.pause()
"""
_PATIENCE_SECONDS = 60

Start = Callable[[str], LocalProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[LocalProcess] = []

    def one(code: str) -> LocalProcess:
        started.append(LocalProcess([sys.executable, "-c", code], {"GIVEN": "1"}, tmp_path / "program.log"))
        return started[-1]

    yield one
    for each in started:
        each.kill()


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        os.sched_yield()


def ended(process: LocalProcess) -> int:
    until(lambda: process.exit_code() is not None)
    code = process.exit_code()
    assert code is not None
    return code


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_an_exit_code_and_last_words_are_told(start: Start) -> None:
    process = start("import os, sys; print('last', os.environ['GIVEN']); sys.exit(3)")
    assert ended(process) == 3
    assert process.last_words() == "last 1\n"


def test_a_key_of_the_users_own_engines_is_not_handed_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_API_KEY", "secret")
    process = start("import os; print(os.environ.get('SAPWOOD_API_KEY'))")
    ended(process)
    assert process.last_words() == "None\n"


def test_last_words_are_those_of_this_run_alone(start: Start) -> None:
    ended(start("print('first')"))
    second = start("print('second')")
    ended(second)
    assert second.last_words() == "second\n"


def test_a_signal_is_told_as_a_shell_tells_it(start: Start) -> None:
    process = start(WAITS)
    os.kill(process.pid, signal.SIGKILL)
    assert ended(process) == 128 + signal.SIGKILL


def test_it_is_asked_to_end(start: Start) -> None:
    process = start(WAITS)
    until(process.last_words)
    process.terminate()
    assert ended(process) == 128 + signal.SIGTERM


@pytest.mark.parametrize("end", [LocalProcess.kill, lambda process: os.kill(process.pid, signal.SIGKILL)])
def test_what_it_started_ends_with_it(start: Start, end: Callable[[LocalProcess], None]) -> None:
    process = start(HAS_A_CHILD)
    until(lambda: process.last_words().endswith("up\n"))
    child = int(process.last_words().split()[0])
    end(process)
    ended(process)
    until(lambda: is_gone(child))


def test_ctrl_c_in_the_terminal_does_not_reach_it(start: Start) -> None:
    process = start(WAITS)
    until(process.last_words)
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)


def test_none_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import signal, sys
from pathlib import Path
from sapwood_operator.local.processes import LocalProcess
process = LocalProcess([sys.executable, "-c", {WAITS!r}], {{}}, Path({str(tmp_path / "child.log")!r}))
print(process.pid, flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not is_gone(child)
        parent.kill()
    until(lambda: is_gone(child))


def test_a_large_log_is_moved_aside_while_its_writer_goes_on(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    path = logs.path("program")
    with path.open("ab", buffering=0) as writer:
        writer.write(b"x" * (MAX_BYTES + 1))
        logs.bound()
        writer.write(b"later")
        logs.bound()
    assert path.read_bytes() == b"later"
    assert (tmp_path / "program.1.log").stat().st_size == MAX_BYTES + 1


def test_logs_of_former_runs_are_kept_up_to_a_number(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 5):
        path = tmp_path / f"{number}.log"
        path.touch()
        os.utime(path, (number, number))
    Logs(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {str(number) for number in range(5, MAX_FILES + 5)}
