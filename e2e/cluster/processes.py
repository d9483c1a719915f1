"""Starts, signals and restarts the cluster's processes by name, from whichever process of the harness.

What is needed to start one again is in its file ``run/NAME.json`` beside its process id, so a test can restart the API
server of a cluster that somebody else brought up.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster import namespaces
from cluster.binaries import tail
from cluster.errors import HarnessError, StartError
from cluster.layout import Layout

TERM_SECONDS = 2.0
"""Patience with SIGTERM. The API server takes 10 s to drain watches, and there is nothing in it to save."""
KILL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Spec:
    """What a process is started from; ``environment`` comes on top of the harness's own."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def start(layout: Layout, spec: Spec) -> int:
    """Start a process inside the cluster's namespaces and return its process id (in the machine's pid namespace)."""
    init = namespaces.init_of(layout)
    enter = ["nsenter", f"--target={init}", "--net", "--pid", "--mount"]
    outer = namespaces.spawn([*enter, *spec.argv], {**os.environ, **spec.environment}, layout.log(spec.name))
    pid = namespaces.only_child(outer, spec.name)
    record = {"pid": pid, "argv": list(spec.argv), "environment": dict(spec.environment)}
    _record_path(layout, spec.name).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return pid


def pid_of(layout: Layout, name: str) -> int:
    """Return the process id under which ``name`` was started last; `HarnessError` where it never was."""
    pid = _record(layout, name)["pid"]
    assert isinstance(pid, int)
    return pid


def is_running(layout: Layout, name: str) -> bool:
    """Return whether the process lives, and is this cluster's: a process id may have been given to another one."""
    path = _record_path(layout, name)
    return path.exists() and _is_ours(layout, pid_of(layout, name))


def send(layout: Layout, name: str, number: signal.Signals) -> None:
    """Send a signal, for example SIGSTOP to freeze a node agent; nothing happens where the process has ended."""
    pid = pid_of(layout, name)
    if _is_ours(layout, pid):
        namespaces.kill(pid, number, wait_seconds=0)


def stop(layout: Layout, name: str, *, term_seconds: float = TERM_SECONDS) -> None:
    """End the process: SIGTERM, and SIGKILL after ``term_seconds`` (0: at once). Returns when it is gone."""
    pid = pid_of(layout, name)
    if not _is_ours(layout, pid):
        return
    if term_seconds and namespaces.kill(pid, signal.SIGTERM, wait_seconds=term_seconds):
        return
    assert namespaces.kill(pid, signal.SIGKILL, wait_seconds=KILL_SECONDS), f"{name} ({pid}) survived SIGKILL"


def start_again(layout: Layout, name: str) -> int:
    """Start a process that has ended as it was started before."""
    record = _record(layout, name)
    argv, environment = record["argv"], record["environment"]
    assert isinstance(argv, list)
    assert isinstance(environment, dict)
    return start(layout, Spec(name, argv, environment))


def names(layout: Layout) -> list[str]:
    """Return the names of all processes that were ever started here."""
    return sorted(path.stem for path in layout.pids.glob("*.json"))


def check_alive(layout: Layout, name: str) -> None:
    """Return while the process lives; else `StartError` with the end of its log."""
    if not is_running(layout, name):
        log = layout.log(name)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        raise StartError(f"{name} ended; {log} ends with:\n{tail(text)}")


def _is_ours(layout: Layout, pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino == os.stat(f"/proc/{namespaces.init_of(layout)}/ns/pid").st_ino
    except FileNotFoundError:
        return False


def _record_path(layout: Layout, name: str) -> Path:
    return layout.pids / f"{name}.json"


def _record(layout: Layout, name: str) -> dict[str, object]:
    path = _record_path(layout, name)
    if not path.exists():
        raise HarnessError(
            f"cluster {layout.name!r} has no process {name!r}; it has: {', '.join(names(layout)) or 'none'}"
        )
    record = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(record, dict)
    return record
