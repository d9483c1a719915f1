"""Cache events over ZeroMQ: their form on the wire, and a consumer that misses some, dies, or meets another engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
import zmq
from support_api import error_of, http
from support_kv_events import Batch, BlockStored, Consumer, as_values, decode
from support_prefix_cache import SPACE, serve
from support_service import collect, generation, options, process_engine, thread_engine

from sapwood_contract.http import ADMIN_BLOCKS, ADMIN_LOAD
from sapwood_contract.keys import TOKEN_BYTES, chain, namespace_root
from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.core.block_log import BlocksCleared, BlocksRemoved, BlocksStored
from sapwood_engine.core.keys import token_key
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace
from sapwood_engine.errors import ConfigError
from sapwood_engine.service import kv_events
from sapwood_engine.service.kv_events import BlockPublisher

PAGE = 4
ADAPTER = Namespace("model", adapter_id="poems")
HASHES = (b"1" * 16, b"2" * 16)


@dataclass
class Published:
    """A small cache, and the publisher that is told of it after every operation."""

    publisher: BlockPublisher
    cache: PrefixCache = field(
        default_factory=lambda: PrefixCache(num_pages=12, page_size=PAGE, log_blocks=True, partial_pages=True)
    )
    num_batches: int = 0

    def mark(self) -> None:
        """Publish a batch in which nothing happens."""
        self.publisher.publish([])
        self.num_batches += 1

    def tell(self) -> None:
        if events := self.cache.take_block_events():
            self.publisher.publish(events)
            self.num_batches += 1

    def snapshot(self) -> bytes:
        self.tell()
        return self.publisher.snapshot(self.cache.block_snapshot())

    def consumer(self) -> Consumer:
        """A consumer whose subscription has arrived: events published before that reach nobody."""
        consumer = Consumer(self.publisher.address, self.snapshot)
        while True:
            self.mark()
            if consumer._events.poll(10):
                consumer.begin_anew()
                consumer.num_snapshots = 0
                return consumer

    def change(self, random: Random) -> None:
        """Serve, evict or flush something."""
        match random.randrange(8):
            case 0:
                self.cache.evict(random.randint(1, 5))
            case 1:
                self.cache.flush(random.choice([None, SPACE, ADAPTER]))
            case _:
                tokens = [random.randrange(2) for _ in range(random.randint(1, 4)) for _ in range(PAGE)]
                serve(self.cache, [*tokens, 7], random.choice([SPACE, ADAPTER]))
        self.tell()

    def is_told(self, consumer: Consumer) -> bool:
        """Whether ``consumer``, after everything published, knows what a match could find."""
        consumer.take_until(self.num_batches - 1)
        return consumer.blocks == {
            hash_ for event in self.cache.block_snapshot() if isinstance(event, BlocksStored) for hash_ in event.hashes
        }


def publisher(*, token_ids: bool = False) -> BlockPublisher:
    return BlockPublisher("127.0.0.1", 0, topic="kv@pod@model", page_size=PAGE, token_ids=token_ids)


@pytest.fixture
def published() -> Iterator[Published]:
    made = Published(publisher())
    yield made
    made.publisher.close()


@pytest.mark.parametrize(("token_ids", "told"), [(False, []), (True, [5, 6, 7, 8, 9, 10, 11, 12])])
def test_events_are_arrays_as_vllms_consumers_read_them(token_ids: bool, told: list[int]) -> None:
    made = Published(publisher(token_ids=token_ids))
    with made.consumer() as consumer:
        key = token_key([5, 6, 7, 8, 9, 10, 11, 12])
        made.publisher.publish(
            [BlocksStored(ADAPTER, b"0" * 16, HASHES, key), BlocksRemoved(HASHES[1:]), BlocksCleared()]
        )
        batches: list[Batch] = []
        while not (batches and batches[-1].events):
            batches.append(decode(consumer.receive()[1]))
    made.publisher.close()
    assert batches[-1].data_parallel_rank == 0
    assert as_values(batches[-1].events) == [
        ["BlockStored", list(HASHES), b"0" * 16, told, PAGE, None, "GPU", "poems"],
        ["BlockRemoved", [HASHES[1]], "GPU"],
        ["AllBlocksCleared"],
    ]


def test_who_hears_everything_knows_what_the_cache_holds(published: Published) -> None:
    with published.consumer() as consumer:
        random = Random(1)
        for _ in range(200):
            published.change(random)
            assert published.is_told(consumer)
        assert consumer.num_replays == 0


def test_missed_batches_are_asked_for(published: Published) -> None:
    with published.consumer() as consumer:
        random = Random(2)
        for _ in range(60):
            for _ in range(random.randint(1, 4)):
                published.change(random)
            published.mark()
            consumer.receive()  # and lost; what follows shows it
            published.mark()
            assert published.is_told(consumer)
        assert consumer.num_replays > 0
        assert consumer.num_snapshots == 0


def test_where_they_are_not_kept_any_more_a_snapshot_heals(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "_KEPT_BATCHES", 2)
    with published.consumer() as consumer:
        random = Random(3)
        for _ in range(20):
            published.change(random)
        while consumer.receive()[0] < published.num_batches - 1:
            pass  # lost, all of it
        published.change(random)
        published.mark()
        assert published.is_told(consumer)
        assert consumer.num_snapshots == 1


def test_a_consumer_that_died_is_exact_again(published: Published) -> None:
    random = Random(4)
    for _ in range(5):
        with published.consumer() as consumer:
            for _ in range(10):
                published.change(random)
                assert published.is_told(consumer)
        for _ in range(10):
            published.change(random)


def test_every_engine_has_an_epoch_of_its_own() -> None:
    one, other = publisher(), publisher()
    assert one.address.epoch != other.address.epoch
    one.close()
    other.close()


def test_what_cannot_be_read_as_a_request_for_events_is_left_alone(published: Published) -> None:
    with published.consumer() as consumer, zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.connect(f"tcp://127.0.0.1:{published.publisher.address.replay_port}")
        for frames in ([b""], [b"", b"short"], [b"", b"12345678", b"more"]):
            stranger.send_multipart(frames)
        assert consumer.replay(published.num_batches) == []


def test_a_port_that_is_taken_is_an_error_that_names_the_option(published: Published) -> None:
    port = published.publisher.address.port
    with pytest.raises(ConfigError, match=rf"--kv-events-port: {port} .*take another"):
        BlockPublisher("127.0.0.1", port, topic="t", page_size=PAGE, token_ids=False)


async def test_a_served_prompt_is_published_under_hashes_that_anybody_can_reckon() -> None:
    async with process_engine(options(kv_events_port=0)) as engine, http(build_admin_app(engine.client)) as admin:
        prompt = list(range(64))
        await collect(engine.client, generation(prompt, max_tokens=1))
        load = (await admin.get(ADMIN_LOAD)).json()
        answer = await admin.get(ADMIN_BLOCKS)
        assert answer.headers["content-type"] == "application/vnd.msgpack"
        batch = decode(answer.content)
        found = [hash_ for event in batch.events if isinstance(event, BlockStored) for hash_ in event.block_hashes]
        root = namespace_root(load["model_revision"], None, None, None)
        assert found == chain(root, token_key(prompt), TOKEN_BYTES * load["kv_events"]["page_size"])
        assert batch.epoch == load["kv_events"]["epoch"]


async def test_an_engine_that_publishes_nothing_says_how_it_would() -> None:
    async with thread_engine() as engine, http(build_admin_app(engine.client)) as admin:
        assert (await admin.get(ADMIN_LOAD)).json()["kv_events"] is None
        assert "--kv-events-port" in error_of(await admin.get(ADMIN_BLOCKS), 404)["message"]
