"""The two pipes: order, privacy, and what happens when an end is missing or talks nonsense."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pytest
import zmq
from support_service import DEADLINE_SECONDS

from sapwood_contract.http import LoadSnapshot
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.request import (
    ContentSpan,
    Namespace,
    Request,
    RequestId,
    SamplingParams,
    StopRules,
    TokenLogprobs,
)
from sapwood_engine.core.step import Admitted, Evicted, Preempted
from sapwood_engine.errors import WorkerDied
from sapwood_engine.service.ipc import HttpChannel, WorkerChannel
from sapwood_engine.service.messages import (
    Abort,
    AdminCall,
    AdminReply,
    Codec,
    Delta,
    Fatal,
    FromWorker,
    Progress,
    Ready,
    Refused,
    Shutdown,
    StepStats,
    Submit,
    TokenBatch,
    ToWorker,
)
from sapwood_engine.service.supervisor import attend
from sapwood_engine.service.watchdog import Watchdog

REQUEST = Request(
    RequestId("call#0.0"),
    Namespace("revision", None, "key", "salt"),
    (0, 1, 151_935),
    SamplingParams(seed=2**63 - 1, logit_bias=((3, -100.0),), num_logprobs=5),
    StopRules(16, 2, frozenset({0, 2})),
    priority=-3,
    routing_key="r",
)
TO_WORKER: list[ToWorker] = [
    Submit(REQUEST),
    Submit(replace(REQUEST, cache_pin_seconds=60.0, content=(ContentSpan(0, 2, b"digest"),))),
    Abort("call#0.0"),
    AdminCall(1, "cache", {"max_nodes": 5}),
    Shutdown(),
]
LOGPROBS = TokenLogprobs(5, float("-inf"), ((5, -0.5), (6, -1.5)))
FROM_WORKER: list[FromWorker] = [
    Progress("load", "weights", 0.5),
    Ready(Capacity(8, 16, 128, 4, 64, 1000), {"backend": "cpu"}, {"load": 1.5}),
    TokenBatch(
        deltas=[Delta("a", (1, 2), "stop", 7, (LOGPROBS, LOGPROBS), (LOGPROBS,), "why")],
        load=LoadSnapshot(num_running=1),
        step=StepStats("mixed", 5, 0.25),
        admitted=[Admitted(RequestId("a"), 5, 4, 0, 0.5, False, (3.5,))],
        preempted=[Preempted(RequestId("b"), 9, "kv_full")],
        evicted=[Evicted(16, "ttl"), Evicted(4, "capacity", (60.0,))],
        num_invariant_failures=1,
    ),
    Refused("c", "never_fits", "too long"),
    AdminReply(1, {"faults": []}, None),
    Fatal("no more"),
]


@pytest.fixture
def channel() -> Iterator[HttpChannel]:
    opened = HttpChannel()
    yield opened
    opened.close()


def test_every_message_comes_back_as_it_was() -> None:
    codec = Codec()
    assert [codec.decode_to_worker(codec.encode(message)) for message in TO_WORKER] == TO_WORKER
    assert [codec.decode_from_worker(codec.encode(message)) for message in FROM_WORKER] == FROM_WORKER


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\xa5Never", b"\x92\xa5Abort\x05"])
def test_a_malformed_message_is_an_error_where_it_arrives(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Codec().decode_to_worker(data)


async def test_messages_of_one_direction_keep_their_order(channel: HttpChannel) -> None:
    worker = WorkerChannel(channel.addresses)
    try:
        for number in range(100):
            worker.send(Progress("load", str(number)))
        arrived: list[FromWorker] = []
        complete = asyncio.Event()

        def take() -> None:
            arrived.extend(channel.receive_ready())
            if len(arrived) == 100:
                complete.set()

        channel.listen(take)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await complete.wait()
        channel.stop_listening()
        assert arrived == [Progress("load", str(number)) for number in range(100)]
        for number in range(100):
            channel.send(Abort(str(number)))
        received: list[ToWorker] = []
        while len(received) < 100:
            assert worker.wait(DEADLINE_SECONDS)
            received.extend(worker.receive_ready())
        assert received == [Abort(str(number)) for number in range(100)]
    finally:
        worker.close()


def test_sending_to_nobody_fails_at_once(channel: HttpChannel) -> None:
    with pytest.raises(WorkerDied):
        channel.send(Shutdown())


def test_the_pipes_are_closed_to_other_users_and_gone_at_the_end(channel: HttpChannel) -> None:
    directory = channel.addresses.directory
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    channel.close()
    channel.close()
    assert not directory.exists()


class Immortal:
    """A worker that never ends."""

    def watch(self, ended: Callable[[int], None]) -> None:
        """Never calls it."""

    def kill(self) -> None:
        """Does not help."""


class Recorder:
    """Notes what it is told."""

    has_asked = False

    def __init__(self) -> None:
        self.messages: list[FromWorker] = []
        self.ended: list[int | None] = []

    def receive(self, message: FromWorker) -> None:
        self.messages.append(message)

    def worker_ended(self, exit_code: int | None) -> None:
        self.ended.append(exit_code)


async def test_nonsense_from_the_worker_ends_every_stream_and_is_raised(channel: HttpChannel) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.connect(channel.addresses.from_worker)
    listener = Recorder()
    try:
        socket.send(Codec().encode(Progress("load", "fine")))
        socket.send(b"\xc1")
        async with asyncio.timeout(DEADLINE_SECONDS):
            with pytest.raises(msgspec.DecodeError):
                await attend(Immortal(), channel, listener, Watchdog(DEADLINE_SECONDS))
    finally:
        socket.close()
        context.term()
    assert listener.messages == [Progress("load", "fine")]
    assert listener.ended == [None]
