"""`sapwood local` as users start it, with real engines."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import openai
import psutil

from sapwood_tools.bench.servers import free_port

MODEL = "smollm2-135m"
PATIENCE_SECONDS = 240


@dataclass
class Local:
    """A running `sapwood local`."""

    process: subprocess.Popen[bytes]
    url: str
    file: Path
    state: Path

    def write(self, documents: str) -> None:
        """Replace what is in the file."""
        draft = self.file.with_suffix(".new")
        draft.write_text(documents, encoding="utf-8")
        draft.replace(self.file)

    def said(self) -> str:
        return (self.state / "said").read_text(encoding="utf-8")

    def engines(self) -> dict[int, psutil.Process]:
        """Return the engines that run, by their ports."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                line = child.cmdline()
                if "serve" in line:
                    found[int(option_of(line, "--port"))] = child
        return found

    def ready_ports(self) -> list[int]:
        """Return the ports of replicas that the gateway is told to use."""
        with contextlib.suppress(OSError):
            items = json.loads((self.state / "discovery.json").read_text(encoding="utf-8"))["items"]
            slices = [each for each in items if each["kind"] == "EndpointSlice"]
            return [each["ports"][0]["port"] for each in slices if each["endpoints"][0]["conditions"]["ready"]]
        return []

    def serves_with(self, num_replicas: int) -> bool:
        """Tell whether the gateway sends requests to so many replicas: it looks at its file now and then."""
        port = int(self.url.rpartition(":")[2])
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port + 1}/metrics") as answer:
            return f'sapwood_gateway_replicas{{state="fit"}} {num_replicas}.0' in answer.read().decode()
        return False


def option_of(line: list[str], option: str) -> str:
    """Return an option of a command line."""
    return next(each.partition("=")[2] for each in line if each.startswith(f"{option}="))


def start(folder: Path, documents: str) -> Local:
    port, file = free_port(), folder / "chat.yaml"
    file.write_text(documents, encoding="utf-8")
    command = [sys.executable, "-m", "sapwood", "local", "-f", str(file), f"--port={port}", f"--state-folder={folder}"]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    return Local(process, f"http://127.0.0.1:{port}", file, folder)


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.05)  # what is waited for needs the processor


async def stream(client: openai.AsyncOpenAI, prompt: str, *, max_tokens: int) -> AsyncGenerator[str, None]:
    """Yield the pieces of a streamed answer to its proper end; raises `openai.APIError` at an error event."""
    chunks = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=max_tokens, stream=True, extra_body={"ignore_eos": True}
    )
    finish_reason = None
    async for chunk in chunks:
        finish_reason = chunk.choices[0].finish_reason
        yield chunk.choices[0].text
    assert finish_reason == "length"


async def outcome(pieces: AsyncIterator[str]) -> str:
    try:
        async for _ in pieces:
            pass
    except openai.APIError:
        return "error event"
    return "complete"
