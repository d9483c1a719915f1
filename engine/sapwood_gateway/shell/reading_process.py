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
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field

from sapwood_gateway.core.reading_turns import ReadingTurns, RestSettings, ServedModel
from sapwood_gateway.core.tokenizer_room import held_by_service, leaving
from sapwood_gateway.shell.asked_process import AskedProcess, Ended
from sapwood_gateway.shell.prompts import Unread
from sapwood_gateway.shell.reading_messages import (
    Answer,
    Forget,
    Load,
    Loaded,
    Question,
    ReadPrompt,
    Refused,
    Tokens,
)

_log = logging.getLogger(__name__)

_TOKENIZERS_PART = 0.5
"""Of the memory, for what tokenizers have: loading one takes half as much again, memory in pieces is lost, and a prompt
takes some."""
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


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question that waits for its turn, and who waits for the answer."""

    question: Question
    answer: asyncio.Future[Answer | None]
    """None where the process ended over it, or its service rests."""


class ReadingProcess:
    """For one event loop; `read` and `load` answer at once or when the question has had its turn."""

    def __init__(self, settings: ReadingSettings | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings or ReadingSettings()
        self._clock = clock
        self._turns: ReadingTurns[_Asked] = ReadingTurns(self._settings.rest)
        self._bundles: dict[ServedModel, bytes] = {}
        self._memory: dict[ServedModel, int] = {}
        """Bytes, of all that were loaded once and are wanted."""
        self._again: _Asked | None = None
        """What is to be asked of the next process before all else."""
        self._child: AskedProcess | None = None
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
        self._check_room(model, bundle)
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="reading process")
        match await self._ask(Load(model, bundle)):
            case Loaded(revision, num_bytes) if revision == model.revision:
                self._memory[model] = num_bytes
                for gone in self._check_room(model, bundle):
                    _log.warning("a tokenizer makes room", extra=_named(gone) | {"reason": f"for {model.service}"})
                    del self._bundles[gone]
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
        for model in self._memory.keys() - models:
            del self._memory[model]

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

    def _check_room(self, model: ServedModel, bundle: bytes) -> frozenset[ServedModel]:
        """Return whose tokenizers go so that ``model`` can have its; raises `CannotLoad` where it is the one to go."""
        bundles = {each: len(kept) for each, kept in self._bundles.items()} | {model: len(bundle)}
        memory = {each: self._memory.get(each, 0) for each in bundles}
        gone: frozenset[ServedModel] = frozenset()
        for what, sizes, most in (
            ("have", bundles, self._settings.bundle_bytes),
            ("take", memory, int(self._settings.memory_bytes * _TOKENIZERS_PART)),
        ):
            gone |= leaving(sizes, model, most)
            if model in gone:
                raise CannotLoad(f"tokenizers of all models together would {what} more than {most} bytes")
        return gone

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
        child = await AskedProcess.start("sapwood_gateway.shell.reading_child", *map(str, limits))
        self.process_ids.append(child.process_id)
        ended = asyncio.create_task(child.ended())
        ended.add_done_callback(lambda _: self._wake.set())
        try:
            async with asyncio.timeout(settings.silence_seconds):
                await child.hear()
            self._child = child
            yield
        except TimeoutError as error:
            raise Ended from error
        finally:
            self._child = None
            await child.end()
            await ended

    async def _turn(self, child: AskedProcess) -> None:
        """Ask what is to be asked next, once there is something."""
        if child.has_ended:  # killed from outside, over nothing that it was asked
            self._child = None
            return
        again, self._again = self._again, None
        asked = again or self._turns.take()
        if asked is None:
            self._wake.clear()
            await self._wake.wait()
            return
        model = asked.question.model
        if again is None and asked.answer.done():  # nobody waits any more
            return
        if again is None and self.rests(model):
            asked.answer.set_result(None)
            return
        answer: Answer | None = None
        try:
            answer = await self._answer(child, asked.question)
        except Ended:
            self._child = None
            if await self._is_to_blame(child, model):
                self._turns.broke(model.service, self._clock())
            else:
                self._turns.crowded(model.service, self._clock())
                self._again = asked
        finally:
            if self._again is None and not asked.answer.done():
                asked.answer.set_result(answer)

    async def _answer(self, child: AskedProcess, question: Question) -> Answer:
        await self._prepare(child, question)
        answer = await child.ask(question, self._settings.silence_seconds)
        if isinstance(answer, Tokens):
            self._turns.took(question.model.service, answer.seconds, self._clock())
        return answer

    async def _is_to_blame(self, child: AskedProcess, model: ServedModel) -> bool:
        """Whether ``child`` ended over ``model`` and not because others had too much beside a tokenizer that it loads.

        That is seen in the next process, where it is loaded first.
        """
        reason = await child.end()
        held = held_by_service({each: self._memory.get(each, 0) for each in child.loaded - {model}})
        is_crowded = isinstance(child.asked, Load) and any(held[each] > held[model.service] for each in held)
        is_to_blame = reason in ("time", "killed") or not is_crowded
        message = "reading a prompt ended the reading process: its service rests"
        crowded = "a tokenizer had not enough memory beside others: it is loaded alone"
        _log.warning(message if is_to_blame else crowded, extra=_named(model) | {"reason": reason})
        return is_to_blame

    async def _prepare(self, child: AskedProcess, question: Question) -> None:
        """Let ``child`` have the tokenizer that ``question`` is for, and none that are not wanted any more."""
        model, seconds = question.model, self._settings.silence_seconds
        for gone in child.loaded - self._bundles.keys() - {model}:
            await child.ask(Forget(gone), seconds)
            child.loaded.discard(gone)
        if isinstance(question, ReadPrompt) and model in self._bundles and model not in child.loaded:
            await child.ask(Load(model, self._bundles[model]), seconds)
        child.loaded.add(model)


def _named(model: ServedModel) -> dict[str, str]:
    return {"service": str(model.service), "model_revision": model.revision}
