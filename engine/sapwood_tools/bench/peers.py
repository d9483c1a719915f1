"""The engines that ours is compared with: how each is installed and started.

Each peer gets a virtual environment of its own below the benchmark's folder, with the exact versions of
``bench/peers/NAME.txt``; nothing of it touches ours. ``bench/peers/README.md`` tells what each can and cannot
do.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sapwood_tools.bench.servers import ServerCommand, free_port
from sapwood_tools.bench.weights import builtin_gguf, write_float16

NUM_SEQUENCES = 16
"""Most requests under way at once in any workload; every peer is told."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine to compare with."""

    name: str
    summary: str


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("llamacpp", "llama.cpp's own server, from the xllamacpp wheel"),
        Peer("openvino", "OpenVINO GenAI's continuous batching behind a small HTTP front"),
    )
}


def install(peer: Peer, *, scripts: Path, folder: Path) -> Path:
    """Return the peer's interpreter, after installing what is not there yet.

    A second call with the same versions installs nothing. Raises `subprocess.CalledProcessError` where pip
    cannot install.
    """
    environment = folder / peer.name
    python = environment / "bin" / "python"
    requirements = scripts / f"{peer.name}.txt"
    installed = environment / "installed.txt"
    if installed.exists() and installed.read_bytes() == requirements.read_bytes():
        return python
    print(f"Installing {peer.name} into {environment}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    # Wheels only: a peer that would be compiled here would be another program than the one its users run.
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    what = ["--only-binary", ":all:", "--requirement", str(requirements)]
    subprocess.run([*pip, *what], check=True, stdout=sys.stderr)
    installed.write_bytes(requirements.read_bytes())
    return python


def shared_weights(folder: Path) -> Path:
    """Return the GGUF that all peers serve, written at the first call."""
    path = folder / "smollm2-135m-float16.gguf"
    if not path.exists():
        print(f"Writing {path}", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        write_float16(builtin_gguf(), path)
    return path


def peer_command(peer: Peer, *, scripts: Path, folder: Path, num_threads: int) -> ServerCommand:
    """Install the peer where needed and return how to start it with the shared weights."""
    python = install(peer, scripts=scripts, folder=folder)
    port = free_port()
    script = (scripts / f"{peer.name}_server.py").resolve()
    argv = [str(python.absolute()), str(script), str(shared_weights(folder).resolve())]
    options = [f"--port={port}", f"--threads={num_threads}", f"--sequences={NUM_SEQUENCES}"]
    return ServerCommand(peer.name, [*argv, *options], port)


def our_command(model: str, *, num_threads: int, options: Sequence[str]) -> ServerCommand:
    """Return how to start our own engine; ``options`` come last and win."""
    port = free_port()
    argv = [sys.executable, "-m", "sapwood", "serve", f"--model={model}", f"--port={port}", "--admin-port=0"]
    return ServerCommand("sapwood", [*argv, f"--threads={num_threads}", *options], port)
