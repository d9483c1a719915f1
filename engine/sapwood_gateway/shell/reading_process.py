"""Reads texts and chats in a process of its own, which may end over any of them without loss.

What an engine hands out as its tokenizer and chat template is a program (`shell.reading_child` runs it). Here is what
it is asked, in which order (`core.reading_turns`), and what becomes of it: over whatever it ends or falls silent, the
service whose prompt that was rests, another process is started, and tokenizers are handed to it as they are asked for.
The gateway keeps what engines have handed out, as they cannot be asked for it again by every other request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from array import array
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field

import msgspec

from sapwood_gateway.core.reading_turns import ReadingTurns, RestSettings, ServedModel
from sapwood_gateway.shell.prompts import Unread
from sapwood_gateway.shell.reading_messages import (
    EXIT_MEMORY,
    LENGTH_BYTES,
    MOST_ANSWER_BYTES,
    Answer,
    Forget,
    Load,
    Loaded,
    Question,
    ReadPrompt,
    Refused,
    Tokens,
    decode_answer,
    frame,
)

_log = logging.getLogger(__name__)

_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL")
"""What the process gets of the gateway's own, and what begins with PYTHON: the rest may be secret."""
_ENDING_SECONDS = 1.0
"""For a process to end by itself, which tells why it does."""
_FIRST_RESTART_SECONDS = 0.1
_LONGEST_RESTART_SECONDS = 60.0
"""Between two processes that do not even begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingSettings:
    """What reading may take."""

    memory_bytes: int = 2**29
    """Of all tokenizers and one prompt: several large vocabularies. Beyond, the process ends."""
    read_seconds: float = 1.0
    """Of the processor's time, for a prompt: a million characters."""
    load_seconds: float = 10.0
    """Of the processor's time, for a tokenizer."""
    silence_seconds: float = 30.0
    """For an answer, by the clock: a process that is neither done nor ended then is ended."""
    bundle_bytes: int = 2**27
    """Of what engines have handed out, all together."""
    rest: RestSettings = field(default_factory=RestSettings)


class CannotLoad(Exception):
    """A tokenizer that cannot be had; the message says why."""


class _Ended(Exception):
    """The process has ended, or is to be ended."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question that waits for its turn, and who waits for the answer."""

    question: Question
    answer: asyncio.Future[Answer | None]
    """None where the process ended over it, or its service rests."""


class _Child:
    """One process, and what it has been given."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._questions = process.stdin
        self._answers = process.stdout
        self.loaded: set[ServedModel] = set()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.returncode is not None

    async def ask(self, question: Question, seconds: float) -> Answer:
        """Return the answer to ``question``; raises `_Ended` where there is none in time."""
        try:
            async with asyncio.timeout(seconds):
                self._questions.write(frame(question))
                await self._questions.drain()
                return await self.hear()
        except (TimeoutError, OSError) as error:
            raise _Ended from error

    async def hear(self) -> Answer:
        """Return what it says next."""
        try:
            length = int.from_bytes(await self._answers.readexactly(LENGTH_BYTES), "big")
            if length > MOST_ANSWER_BYTES:
                raise _Ended
            return decode_answer(await self._answers.readexactly(length))
        except (asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
            raise _Ended from error

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


class ReadingProcess:
    """For one event loop; `read` and `load` answer at once or when the question has had its turn."""

    def __init__(self, settings: ReadingSettings | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings or ReadingSettings()
        self._clock = clock
        self._turns: ReadingTurns[_Asked] = ReadingTurns(self._settings.rest)
        self._bundles: dict[ServedModel, bytes] = {}
        self._child: _Child | None = None
        """The one that can be asked now."""
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.process_ids: deque[int] = deque(maxlen=16)
        """Of the last processes, the one that runs at the end."""

    def has(self, model: ServedModel) -> bool:
        """Whether the prompts of ``model`` can be read."""
        return model in self._bundles

    def rests(self, model: ServedModel) -> bool:
        """Whether they are not read for a while."""
        return self._turns.rests(model.service, self._clock())

    async def load(self, model: ServedModel, bundle: bytes) -> None:
        """Have the tokenizer of ``model`` from now on; raises `CannotLoad`. The first one starts the process."""
        if sum(map(len, self._bundles.values())) + len(bundle) > self._settings.bundle_bytes:
            raise CannotLoad(f"tokenizers of all models together have more than {self._settings.bundle_bytes} bytes")
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="reading process")
        match await self._ask(Load(model, bundle)):
            case Loaded(revision) if revision == model.revision:
                self._bundles[model] = bundle
            case Loaded(revision):
                raise CannotLoad(f"it is of revision {revision}")
            case Refused(reason):
                raise CannotLoad(reason)
            case _:
                raise CannotLoad("the process that was to read it ended")

    def keep(self, models: Collection[ServedModel]) -> None:
        """Forget the tokenizers of all others."""
        for model in self._bundles.keys() - models:
            del self._bundles[model]

    async def read(self, model: ServedModel, path: str, body: bytes, tenant: str | None) -> array[int] | Unread:
        """Return the token ids of the (first) prompt in a JSON ``body`` sent to ``path``, or why they are not known.

        ``tenant``: whose it is. Nothing is waited for that may take long but for the prompt's turn.
        """
        if not self.has(model):
            return "unreadable"
        if self._child is None or self.rests(model):
            return "late"
        answer = await self._ask(ReadPrompt(model, path, body, tenant))
        if answer is None:
            return "late"
        ids = array("i")
        if isinstance(answer, Tokens) and len(answer.ids) % ids.itemsize == 0:
            ids.frombytes(answer.ids)
        return ids or "unreadable"

    async def aclose(self) -> None:
        """End the process."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _ask(self, question: Question) -> Answer | None:
        asked = _Asked(question, asyncio.get_running_loop().create_future())
        self._turns.add(question.model.service, asked)
        self._wake.set()
        return await asked.answer

    # --- the task

    async def _run(self) -> None:
        """Keep a process, for ever."""
        pause = _FIRST_RESTART_SECONDS
        while True:
            try:
                async with self._started():
                    pause = _FIRST_RESTART_SECONDS
                    while self._child is not None:
                        await self._turn(self._child)
            except Exception as error:  # nothing may end reading for good
                _log.warning("the reading process does not begin", extra={"reason": repr(error)[:200]})
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_RESTART_SECONDS)

    @contextlib.asynccontextmanager
    async def _started(self) -> AsyncIterator[None]:
        """Start a process, and end it."""
        settings = self._settings
        limits = (settings.memory_bytes, settings.read_seconds, settings.load_seconds)
        command = (sys.executable, "-P", "-m", "sapwood_gateway.shell.reading_child", *map(str, limits))
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=_environment()
        )
        self.process_ids.append(process.pid)
        child = _Child(process)
        ended = asyncio.create_task(child.ended())
        ended.add_done_callback(lambda _: self._wake.set())
        try:
            async with asyncio.timeout(settings.silence_seconds):
                await child.hear()
            self._child = child
            yield
        except TimeoutError as error:
            raise _Ended from error
        finally:
            self._child = None
            await child.end()
            await ended

    async def _turn(self, child: _Child) -> None:
        """Ask what is to be asked next, once there is something."""
        if child.has_ended:  # killed from outside, over nothing that it was asked
            self._child = None
            return
        asked = self._turns.take()
        if asked is None:
            self._wake.clear()
            await self._wake.wait()
            return
        model = asked.question.model
        if asked.answer.done():  # nobody waits any more
            return
        if self.rests(model):
            asked.answer.set_result(None)
            return
        answer: Answer | None = None
        try:
            await self._prepare(child, asked.question)
            answer = await child.ask(asked.question, self._settings.silence_seconds)
            if isinstance(answer, Tokens):
                self._turns.took(model.service, answer.seconds, self._clock())
        except _Ended:
            self._child = None
            self._turns.broke(model.service, self._clock())
            extra = {"service": str(model.service), "model_revision": model.revision, "reason": await child.end()}
            _log.warning("reading a prompt ended the reading process: its service rests", extra=extra)
        finally:
            if not asked.answer.done():
                asked.answer.set_result(answer)

    async def _prepare(self, child: _Child, question: Question) -> None:
        """Let ``child`` have the tokenizer that ``question`` is for, and none that are not wanted any more."""
        model, seconds = question.model, self._settings.silence_seconds
        for gone in child.loaded - self._bundles.keys() - {model}:
            await child.ask(Forget(gone), seconds)
            child.loaded.discard(gone)
        if isinstance(question, ReadPrompt) and model in self._bundles and model not in child.loaded:
            await child.ask(Load(model, self._bundles[model]), seconds)
        child.loaded.add(model)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT or name.startswith("PYTHON")}
    # One prompt at a time: threads would only take memory.
    return {**kept, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
