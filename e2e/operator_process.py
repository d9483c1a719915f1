"""The operator as a process of its own, which tests start, signal and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sapwood_tools.bench.servers import free_port
from world import eventually

LOOPBACK = "127.0.0.1"
START_SECONDS = 120.0
"""A lease of an operator that was killed runs out within it."""
STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class OperatorProcess:
    """A running operator."""

    process: subprocess.Popen[bytes]
    health_port: int
    log: Path

    def get(self, path: str) -> str:
        """Return what its health port answers; empty where it does not, or not with 200."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self.health_port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return ""

    def leads(self) -> bool:
        """Whether it leads and knows the cluster."""
        return self.get("/readyz").strip() == "leading"

    def wait_until_leading(self) -> None:
        """Return once it leads; fails with its log where it ended."""
        eventually(self._leads_or_ended, f"an operator that leads; its log: {self.log}", within_seconds=START_SECONDS)

    def _leads_or_ended(self) -> bool:
        assert self.process.poll() is None, self.log.read_text(encoding="utf-8")[-4000:]
        return self.leads()

    def kill(self) -> None:
        """Kill it as a power cut would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def metric(self, series: str) -> float:
        """Return the value of one series, labels included."""
        lines = (line for line in self.get("/metrics").splitlines() if line.startswith(f"{series} "))
        return float(next(lines).split()[-1])


@contextmanager
def operator(
    kubeconfig: Path, log: Path, *, identity: str, options: Mapping[str, object] | None = None
) -> Iterator[OperatorProcess]:
    """Run an operator against the cluster of ``kubeconfig`` for as long as the context lasts.

    Its log is appended to, so that one who was killed and its successor may share one.
    """
    port = free_port()
    given: dict[str, object] = {
        "operator-namespace": "sapwood",
        "gateway-service": "sapwood-gateway",
        "gateway-instance": "sapwood",
        "engine-image": "sapwood/engine:test",
        "health-host": LOOPBACK,
        "health-port": port,
        "kubeconfig": kubeconfig,
        "identity": identity,
        "lease-seconds": 60,  # a busy machine is no reason to lose it
        "request-timeout-seconds": 2,
        "retry-seconds": 2,
        **(options or {}),
    }
    argv = [sys.executable, "-m", "sapwood", "operator", *(f"--{name}={value}" for name, value in given.items())]
    with log.open("ab") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        yield OperatorProcess(process, port, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
