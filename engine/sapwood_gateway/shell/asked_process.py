"""The process that reads prompts, as the gateway has it: a question, an answer, and why it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process

import msgspec

from sapwood_gateway.core.reading_turns import ServedModel
from sapwood_gateway.shell.reading_messages import (
    EXIT_MEMORY,
    LENGTH_BYTES,
    MOST_ANSWER_BYTES,
    Answer,
    Question,
    decode_answer,
    frame,
)

_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL")
"""What the process gets of the gateway's own, and what begins with PYTHON: the rest may be secret."""
_ENDING_SECONDS = 1.0
"""For a process to end by itself, which tells why it does."""


class Ended(Exception):
    """The process has ended, or is to be ended."""


class AskedProcess:
    """One process, and what it has been given."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._questions = process.stdin
        self._answers = process.stdout
        self.asked: Question | None = None
        """The last question."""
        self.loaded: set[ServedModel] = set()

    @classmethod
    async def start(cls, module: str, *arguments: str) -> AskedProcess:
        """Run the program ``module``, which is to say first that it has begun."""
        command = (sys.executable, "-P", "-m", module, *arguments)
        return cls(
            await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=_environment())
        )

    @property
    def process_id(self) -> int:
        """The system's."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.returncode is not None

    async def ask(self, question: Question, seconds: float) -> Answer:
        """Return the answer to ``question``; raises `Ended` where there is none in time."""
        self.asked = question
        try:
            async with asyncio.timeout(seconds):
                self._questions.write(frame(question))
                await self._questions.drain()
                return await self.hear()
        except (TimeoutError, OSError) as error:
            raise Ended from error

    async def hear(self) -> Answer:
        """Return what it says next."""
        try:
            length = int.from_bytes(await self._answers.readexactly(LENGTH_BYTES), "big")
            if length > MOST_ANSWER_BYTES:
                raise Ended
            return decode_answer(await self._answers.readexactly(length))
        except (asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
            raise Ended from error

    async def ended(self) -> int:
        """Return its exit code once it has ended."""
        return await self._process.wait()

    async def end(self) -> str:
        """End it if it has not; return why it did."""
        self._questions.close()
        try:
            async with asyncio.timeout(_ENDING_SECONDS):
                code = await self.ended()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            code = await self.ended()
        return {-signal.SIGPROF: "time", EXIT_MEMORY: "memory", -signal.SIGKILL: "killed"}.get(code, f"exit {code}")


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT or name.startswith("PYTHON")}
    # One prompt at a time: threads would only take memory. Python's memory is counted with all other (`reading_child`).
    return {**kept, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONMALLOC": "malloc"}
