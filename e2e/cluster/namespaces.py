"""Makes and destroys the two namespaces of a cluster: a network that nothing leaves, and a pid namespace.

::

    netns sap-NAME  (named, so that tests can enter it; no route leads out)
    └── init: `sleep` as process 1 of the cluster's pid namespace, with a private mount namespace
        └── every process of the cluster, and below node agents every container

All that a cluster runs is in the pid namespace of its init, so the kernel ends all of it when init is killed. Init is
found by looking into the network namespace, not in a file: `destroy` cleans up after a harness that crashed anywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
from pathlib import Path

from cluster.errors import NoClusterError, StartError
from cluster.layout import BRIDGE, CONTROL_PLANE_ADDRESS, POD_PREFIX_LENGTH, SERVICE_NETWORK, Layout

KILL_SECONDS = 30
"""How long the kernel may take to end every process of a cluster."""
_CLONE_NEWNET = 0x40000000

# Process 1 of a pid namespace inherits orphans. With SIGCHLD ignored the kernel reaps them, and `sleep` need not.
_INIT = ("env", "--ignore-signal=CHLD", "sleep", "infinity")
_SYSCTLS = (
    "net/ipv4/ip_forward",
    # Replies from a pod to a pod on the same bridge must pass the connection tracking that put in a Service's address.
    "net/bridge/bridge-nf-call-iptables",
)


def create(layout: Layout, *, ends_with_us: bool) -> int:
    """Make the namespaces of a cluster that does not exist, and return init's process id; `StartError` on failure.

    With ``ends_with_us`` the kernel ends the cluster when this thread ends, however that comes.
    """
    _ip("netns", "add", layout.netns)
    try:
        _ip("-n", layout.netns, "link", "set", "lo", "up")
        _ip("-n", layout.netns, "link", "add", BRIDGE, "type", "bridge")
        _ip("-n", layout.netns, "address", "add", f"{CONTROL_PLANE_ADDRESS}/{POD_PREFIX_LENGTH}", "dev", BRIDGE)
        _ip("-n", layout.netns, "link", "set", BRIDGE, "up")
        # connect() wants a route before netfilter may replace a Service's address by a pod's.
        _ip("-n", layout.netns, "route", "add", SERVICE_NETWORK, "dev", BRIDGE)
        switches = "; ".join(f"echo 1 > /proc/sys/{name}" for name in _SYSCTLS)
        _run("ip", "netns", "exec", layout.netns, "sh", "-ec", switches)
        return _start_init(layout, ends_with_us=ends_with_us)
    except StartError:
        destroy(layout)
        raise


def _start_init(layout: Layout, *, ends_with_us: bool) -> int:
    tie = ["setpriv", "--pdeathsig", "KILL"] if ends_with_us else []
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--propagation", "private"]
    launch = ["nsenter", f"--net={layout.netns_path}", *tie, *unshare, *_INIT]
    outer = spawn(launch, dict(os.environ), Path(os.devnull))
    return only_child(outer, "the cluster's init")


def spawn(argv: list[str], environment: dict[str, str], log: Path) -> int:
    """Start ``argv`` in a session of its own, its output appended to ``log``, and return its process id.

    It outlives this process. Nobody waits for it: it becomes the machine's init's child, or is a zombie until then.
    """
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawnp(argv[0], argv, environment, file_actions=actions, setsid=True)


def only_child(pid: int, what: str, *, timeout_seconds: float = 10.0) -> int:
    """Return the process id of the one child of ``pid`` as soon as there is one; `StartError` where it ended first."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    ended = select.poll()
    handle = os.pidfd_open(pid)
    ended.register(handle, select.POLLIN)
    try:
        for _ in range(int(timeout_seconds / 0.01)):
            found = children.read_text(encoding="ascii").split() if children.exists() else []
            if found:
                return int(found[0])
            if ended.poll(10):
                break
    finally:
        os.close(handle)
    raise StartError(f"{what} did not start: is everything that it needs installed?")


def init_of(layout: Layout) -> int:
    """Return the process id of the cluster's init; `NoClusterError` where none runs."""
    if layout.netns_path.exists():
        own_depth = len(_namespaced_pids(os.getpid()))
        for pid in _pids(layout):
            numbers = _namespaced_pids(pid)
            if len(numbers) == own_depth + 1 and numbers[-1] == 1:
                return pid
    raise NoClusterError(
        f"no cluster named {layout.name!r} runs here; start one: python -m cluster up --name {layout.name}"
    )


def _pids(layout: Layout) -> list[int]:
    """Return the processes in the cluster's own network; pods have others."""
    listed = subprocess.run(["ip", "netns", "pids", layout.netns], check=False, capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]


def _namespaced_pids(pid: int) -> list[int]:
    """Return the process's id in each pid namespace from ours inwards; empty where it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return []
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return [int(number) for number in line.split()[1:]]


def enter(layout: Layout) -> None:
    """Move this thread, and what it starts from now on, into the cluster's network. There is no way back."""
    handle = os.open(layout.netns_path, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12
        if libc.setns(handle, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {layout.netns_path}")
    finally:
        os.close(handle)


def destroy(layout: Layout) -> None:
    """End every process of the cluster and remove its network; does nothing where there is none."""
    with contextlib.suppress(NoClusterError):
        init = init_of(layout)
        entered = _entrances(layout, init)
        kill(init, signal.SIGKILL, wait_seconds=KILL_SECONDS)
        # Each ends with what it started, but for one that somebody has stopped.
        for pid in entered:
            kill(pid, signal.SIGKILL, wait_seconds=KILL_SECONDS)
    if layout.netns_path.exists():
        _ip("netns", "delete", layout.netns)


def _entrances(layout: Layout, init: int) -> list[int]:
    """Return the ``nsenter`` processes that wait, in our pid namespace, for a process in the cluster's."""
    inside = os.readlink(f"/proc/{init}/ns/pid")
    found = []
    for pid in _pids(layout):
        with contextlib.suppress(FileNotFoundError):
            links = {os.readlink(f"/proc/{pid}/ns/{name}") for name in ("pid", "pid_for_children")}
            if inside in links and len(links) == 2:
                found.append(pid)
    return found


def kill(pid: int, number: signal.Signals, *, wait_seconds: float) -> bool:
    """Send a signal and return whether the process ended within ``wait_seconds``; one that has ended already has."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        signal.pidfd_send_signal(handle, number)
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        return bool(poller.poll(wait_seconds * 1000))
    except ProcessLookupError:
        return True
    finally:
        os.close(handle)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode:
        raise StartError(f"{' '.join(argv)} failed: {done.stderr.strip()}")
