"""A whole engine but for the model and HTTP: client, pipes, engine loop and a fake executor.

`thread_engine` runs the worker's loop on a thread of this process; `process_engine` in a second process,
which is `support_fake_worker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from support_fake_executor import FakeExecutor, capacity_for_tests
from tokenizers import decoders, models, pre_tokenizers

from sapwood_contract.http import LoadSnapshot
from sapwood_contract.launch import LaunchOptions, to_argv
from sapwood_engine.config import engine_config
from sapwood_engine.core.ports import Capacity, Executor
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace, SamplingParams, StopRules
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.errors import WorkerDied
from sapwood_engine.service.client import EngineClient, Generation, TextDelta
from sapwood_engine.service.engine_loop import EngineLoop
from sapwood_engine.service.ipc import HttpChannel, WorkerChannel
from sapwood_engine.service.messages import FromWorker, Ready, Shutdown
from sapwood_engine.service.supervisor import attend
from sapwood_engine.service.watchdog import Watchdog
from sapwood_engine.service.worker import build_core
from sapwood_engine.service.worker_process import WorkerProcess
from sapwood_text.tokenizer import ChatTemplate, Tokenizer

DEADLINE_SECONDS = 10.0
"""Of every wait in these tests; reached only by a fault."""
EOS_ID = 256
VOCAB_SIZE = 257
ENDLESS = 60_000
"""More tokens than any test waits for."""


def byte_tokenizer(chat_template: ChatTemplate | None = None) -> Tokenizer:
    """A tokenizer whose ids 0 … 255 are the bytes, and 256 the special end-of-sequence token."""
    return Tokenizer(byte_backend(), eos_token_ids=(EOS_ID,), chat_template=chat_template)


def byte_backend() -> tokenizers.Tokenizer:
    """What `byte_tokenizer` stands on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    vocab = {chr(byte): byte for byte in own} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken("<|end|>", special=True)])
    return backend


def small_capacity(**changes: int) -> Capacity:
    """Room for a few short requests and an endless one."""
    sizes = {"num_pages": 4096, "page_size": 16, "max_seats": 4, "vocab_size": VOCAB_SIZE}
    return capacity_for_tests(**(sizes | changes))


def options(**changes: object) -> LaunchOptions:
    """Launch options that suit `small_capacity`."""
    defaults: dict[str, object] = {"max_running": 4, "max_step_tokens": 64, "chunk_tokens": 32}
    return LaunchOptions(**(defaults | changes))  # type: ignore[arg-type]  # each test names options of its own


def generation(
    prompt: str | Sequence[int] = "once upon a time",
    *,
    max_tokens: int = 8,
    min_tokens: int = 0,
    stop_token_ids: frozenset[int] = frozenset(),
    request_id: str = "call",
    temperature: float = 0.0,
    num_logprobs: int | None = None,
    num_prompt_logprobs: int | None = None,
    seed: int | None = None,
    stop_strings: tuple[str, ...] = (),
    n: int = 1,
    priority: int = 0,
) -> Generation:
    """A call with the fields that tests care about."""
    ids = tuple(prompt.encode() if isinstance(prompt, str) else prompt)
    return Generation(
        prompt_ids=ids,
        namespace=Namespace(""),
        sampling=SamplingParams(
            seed=0,
            temperature=temperature,
            num_logprobs=num_logprobs,
            num_prompt_logprobs=num_prompt_logprobs,
        ),
        stop=StopRules(max_tokens=max_tokens, min_tokens=min_tokens, stop_token_ids=stop_token_ids),
        request_id=request_id,
        seed=seed,
        stop_strings=stop_strings,
        n=n,
        priority=priority,
    )


async def collect(client: EngineClient, call: Generation) -> list[TextDelta]:
    """Run a call to its end."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        return [delta async for delta in client.generate(call)]


async def settle(client: EngineClient) -> LoadSnapshot:
    """Return the load after the worker has taken everything sent so far and committed what was in flight.

    Messages keep their order, an answer comes at the end of a turn of the worker's loop, a turn commits a
    step, and two are in flight at most: three answers, asked for one after the other, are three turns.
    """
    async with asyncio.timeout(DEADLINE_SECONDS):
        for _ in range(3):
            assert (await client.admin("check"))["faults"] == []
    return client.load


@dataclass(slots=True)
class ThreadWorker:
    """Stands in for the worker process: a thread, whose exit code is 1 when the loop raised."""

    work: Callable[[], int]
    thread: threading.Thread | None = None

    def watch(self, ended: Callable[[int], None]) -> None:
        """Start the thread; its end is this worker's."""
        self.thread = threading.Thread(target=lambda: ended(self.work()), daemon=True)
        self.thread.start()

    def kill(self) -> None:
        """Does nothing, for a thread cannot be ended."""


@dataclass(slots=True)
class ThreadEngine:
    """A running engine; cache and scheduler may be looked at once it has stopped."""

    client: EngineClient
    channel: HttpChannel
    executor: Executor
    cache: PrefixCache
    scheduler: Scheduler
    worker: ThreadWorker
    attending: asyncio.Task[int]


class FailingChannel(WorkerChannel):
    """Raises at the ``fail_at``-th send, counted from 0, and at every later one, as a broken socket would."""

    def __init__(self, channel: HttpChannel, *, fail_at: int | None = None) -> None:
        super().__init__(channel.addresses)
        self._fail_at = fail_at
        self._num_sent = 0

    def send(self, message: FromWorker) -> None:
        self._num_sent += 1
        if self._fail_at is not None and self._num_sent > self._fail_at:
            raise OSError("the socket is broken")
        super().send(message)


def new_client(channel: HttpChannel, launch: LaunchOptions) -> EngineClient:
    """A client with the byte tokenizer, waiting for a worker's `Ready`."""
    client = EngineClient(
        channel, model_name="fake", max_queued=launch.max_queued, drain_seconds=launch.drain_seconds, seed=1
    )
    client.checkpoint_found("revision", byte_tokenizer())
    return client


@contextlib.asynccontextmanager
async def thread_engine(
    *, executor: Executor | None = None, launch: LaunchOptions | None = None, fail_send: int | None = None
) -> AsyncIterator[ThreadEngine]:
    """Run an engine whose worker is a thread; on leaving the block it has stopped."""
    executor = executor or FakeExecutor(small_capacity())
    launch = launch or options()
    channel = HttpChannel()
    client = new_client(channel, launch)
    cache, scheduler = build_core(engine_config(launch), executor.capacity)

    def work() -> int:
        pipe = FailingChannel(channel, fail_at=fail_send)
        try:
            pipe.send(Ready(executor.capacity, {}, {}))
            EngineLoop(
                scheduler=scheduler,
                cache=cache,
                executor=executor,
                channel=pipe,
                overlap=launch.overlap == "on",
            ).run()
        except OSError:
            return 1
        finally:
            pipe.close()
        return 0

    worker = ThreadWorker(work)
    attending = asyncio.create_task(attend(worker, channel, client, Watchdog(launch.step_timeout_seconds)))
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await client.wait_until_ready()
        yield ThreadEngine(client, channel, executor, cache, scheduler, worker, attending)
    finally:
        await _stop(channel, attending)
        channel.close()


async def _stop(channel: HttpChannel, attending: asyncio.Task[int]) -> None:
    ask_to_end(channel)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await attending


def ask_to_end(channel: HttpChannel) -> None:
    """Send a `Shutdown`, unless nobody is there."""
    with contextlib.suppress(WorkerDied):
        channel.send(Shutdown())


@dataclass(slots=True)
class ProcessEngine:
    """A running engine whose worker is a process."""

    client: EngineClient
    channel: HttpChannel
    worker: WorkerProcess
    attending: asyncio.Task[int]


@contextlib.asynccontextmanager
async def process_engine(launch: LaunchOptions | None = None) -> AsyncIterator[ProcessEngine]:
    """Run an engine whose worker is `support_fake_worker` in a process of its own."""
    launch = launch or options()
    channel = HttpChannel()
    client = new_client(channel, launch)
    worker = WorkerProcess(fake_worker_command(channel, launch))
    attending = asyncio.create_task(attend(worker, channel, client, Watchdog(launch.step_timeout_seconds)))
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await client.wait_until_ready()
        yield ProcessEngine(client, channel, worker, attending)
    finally:
        ask_to_end(channel)
        worker.end()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await attending
        channel.close()


def fake_worker_command(channel: HttpChannel, launch: LaunchOptions) -> list[str]:
    """The argv of a worker process with a fake executor."""
    program = Path(__file__).with_name("support_fake_worker.py")
    return [sys.executable, str(program), str(channel.addresses.directory), *to_argv(launch)]
