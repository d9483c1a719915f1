"""Small pods for tests of the cluster itself: what they run is a line of shell, or a web server."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from world import World, eventually

SHELL = "e2e/shell:1"
PYTHON = "e2e/python:1"
WEB = "import http.server as h; h.ThreadingHTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
"""Answers every path that exists in its working folder."""
UNTIL_TERM = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
"""A shell that ends when it is asked to; as process 1 it would ignore SIGTERM otherwise."""


def shell(script: str, **fields: Any) -> dict[str, Any]:
    """Return a container that runs a shell script."""
    return {"name": "main", "image": SHELL, "args": ["-c", script], **fields}


def web(**fields: Any) -> dict[str, Any]:
    """Return a container that serves an empty folder on port 8000."""
    port = {"name": "http", "containerPort": 8000}
    return {"name": "main", "image": PYTHON, "args": ["-c", WEB], "workingDir": "/srv", "ports": [port], **fields}


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of one namespace."""

    world: World
    namespace: str

    @property
    def collection(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def make(
        self, name: str, *containers: Mapping[str, Any], labels: Mapping[str, str] | None = None, **spec: Any
    ) -> None:
        """Create a pod that ends within a second when it is deleted, unless ``spec`` says otherwise."""
        metadata = {"name": name, "namespace": self.namespace, "labels": labels or {}}
        body = {"containers": containers, "terminationGracePeriodSeconds": 1, **spec}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}
        self.world.call("POST", self.collection, pod)

    def get(self, name: str) -> dict[str, Any]:
        pod = self.world.get(f"{self.collection}/{name}")
        assert pod is not None, f"pod {self.namespace}/{name} is gone"
        return pod

    def delete(self, name: str) -> None:
        self.world.delete(f"{self.collection}/{name}")

    def container(self, name: str) -> dict[str, Any]:
        """Return the status of a pod's first container; empty until there is one."""
        statuses = self.get(name).get("status", {}).get("containerStatuses", [])
        return statuses[0] if statuses else {}

    def phase(self, name: str) -> str:
        return str(self.get(name)["status"]["phase"])

    def is_ready(self, name: str) -> bool:
        conditions = self.get(name)["status"].get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def logs(self, name: str, *flags: str) -> str:
        """Return what the container has printed, as ``kubectl logs`` shows it."""
        command = ["kubectl", "logs", "--namespace", self.namespace, name, *flags]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait_ready(self, name: str) -> None:
        eventually(lambda: self.is_ready(name), f"pod {name} ready")

    def output(self, name: str) -> str:
        """Return what a pod with ``restartPolicy: Never`` has printed, once it has ended; it must have ended well."""
        eventually(lambda: self.phase(name) in ("Succeeded", "Failed"), f"pod {name} ended")
        text = self.logs(name)
        assert self.phase(name) == "Succeeded", text
        return text

    def run(self, name: str, *containers: Mapping[str, Any], **spec: Any) -> str:
        """Make a pod that runs once, and return what it printed."""
        self.make(name, *containers, restartPolicy="Never", **spec)
        return self.output(name)

    def waiting(self, name: str, reason: str) -> str:
        """Return with which message the container waits for ``reason``; empty while it does not."""
        waiting = self.container(name).get("state", {}).get("waiting", {})
        return str(waiting.get("message", "")) if waiting.get("reason") == reason else ""


def kill_processes(pod: str) -> None:
    """End all that runs in a pod of that name at once, as for want of memory; its containers begin anew."""
    mark = f"HOSTNAME={pod}".encode()
    found = [path for path in Path("/proc").glob("[0-9]*/environ") if mark in _environment(path)]
    assert found, f"nothing runs in pod {pod}"
    for path in found:
        with suppress(ProcessLookupError):
            os.kill(int(path.parent.name), signal.SIGKILL)


def _environment(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:  # it has ended
        return []
