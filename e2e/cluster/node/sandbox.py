"""A pod's network: a namespace held by a process that sleeps, joined to the node's bridge.

The kernel removes the namespace and both ends of its cable when that process ends, and it ends with the agent: there
is nothing to clean up after a crash.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import dataclass
from pathlib import Path

from cluster.layout import BRIDGE, CONTROL_PLANE_ADDRESS, POD_PREFIX_LENGTH

POLL_SECONDS = 0.005


class SandboxError(Exception):
    """The pod's network could not be made."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod's network namespace; ``holder`` keeps it alive."""

    address: str
    holder: Process

    @property
    def network(self) -> Path:
        return Path(f"/proc/{self.holder.pid}/ns/net")

    async def remove(self) -> None:
        if self.holder.returncode is None:
            self.holder.kill()
        await self.holder.wait()


async def make(pod_uid: str, address: str) -> Sandbox:
    """Make the network of the pod with ``address``; `SandboxError` with what ``ip`` said."""
    # setpriv and unshare become the next program, so the process keeps its id. It dies with the thread that starts
    # it: the agent's only one.
    hold = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"]
    holder = await asyncio.create_subprocess_exec(*hold, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    sandbox = Sandbox(address, holder)
    try:
        await _unshared(sandbox)
        await _cable(pod_uid, sandbox)
    except BaseException:
        await sandbox.remove()
        raise
    return sandbox


async def _unshared(sandbox: Sandbox) -> None:
    own = os.stat("/proc/self/ns/net").st_ino
    while sandbox.holder.returncode is None:
        if os.stat(sandbox.network).st_ino != own:
            return
        await asyncio.sleep(POLL_SECONDS)
    raise SandboxError(f"unshare ended with {sandbox.holder.returncode}")


async def _cable(pod_uid: str, sandbox: Sandbox) -> None:
    pid = sandbox.holder.pid
    cable = "v" + pod_uid.replace("-", "")[:12]
    await _ip(
        [],
        f"link add {cable} type veth peer name eth0 netns {pid}",
        f"link set {cable} master {BRIDGE} up",
        # Without it a pod that calls its own Service would never hear itself answer.
        f"link set {cable} type bridge_slave hairpin on",
    )
    await _ip(
        ["nsenter", f"--net={sandbox.network}"],
        "link set lo up",
        f"address add {sandbox.address}/{POD_PREFIX_LENGTH} dev eth0",
        "link set eth0 up",
        f"route add default via {CONTROL_PLANE_ADDRESS}",
    )


async def _ip(inside: list[str], *commands: str) -> None:
    batch = await asyncio.create_subprocess_exec(*inside, "ip", "-batch", "-", stdin=PIPE, stdout=DEVNULL, stderr=PIPE)
    _, said = await batch.communicate("\n".join(commands).encode())
    if batch.returncode:
        raise SandboxError(f"ip: {said.decode(errors='replace').strip()}")
