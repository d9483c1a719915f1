"""What moves of a cache, over pipes: asked of the worker in portions, handed to another engine, computed there."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from typing import Any, Literal

import msgspec
import pytest
from support_prefix_cache import serve as fill
from support_service import (
    DEADLINE_SECONDS,
    ThreadEngine,
    collect,
    generation,
    options,
    small_capacity,
    thread_engine,
)

from sapwood_contract.http import BLOCK_NAME_BYTES, CachedNodes, EngineState, HotPrefix, WarmProgress
from sapwood_engine.config import engine_config
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.warming import WarmPrefix
from sapwood_engine.errors import Draining
from sapwood_engine.service.prefix_calls import PrefixCalls
from sapwood_engine.service.prefixes import Prefixes
from sapwood_engine.service.warm_up import WarmUp
from sapwood_engine.service.worker import build_core

PROMPTS = [b"a prompt that many have in common, then their own: " + bytes([48 + n]) * 40 for n in range(3)]


def names(nodes: CachedNodes) -> set[bytes]:
    told = [b64decode(node.blocks) for node in nodes.nodes]
    return {each[at : at + BLOCK_NAME_BYTES] for each in told for at in range(0, len(each), BLOCK_NAME_BYTES)}


def as_told(prefix: HotPrefix) -> WarmPrefix:
    namespace = Namespace("revision", prefix.adapter, prefix.extra_key, prefix.cache_salt, prefix.tenant)
    return WarmPrefix(namespace, prefix.token_ids, prefix.worth_tokens, prefix.parts)


async def worked_off(engine: ThreadEngine) -> WarmProgress:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (progress := engine.client.prefixes.progress()).num_waiting:
            await engine.client.admin("check")  # a turn of the worker's loop, behind which its news are here
    return progress


async def serve(engine: ThreadEngine) -> None:
    """Serve each twice, for what was used once may never come again."""
    for prompt in [*PROMPTS, *PROMPTS]:
        await collect(engine.client, generation(list(prompt), max_tokens=1))


async def test_what_one_engine_hands_over_is_block_for_block_in_the_other_and_a_request_finds_it() -> None:
    async with thread_engine() as giving, thread_engine(launch=options(page_size=16)) as taking:
        await serve(giving)
        hot = await giving.client.prefixes.hot(max_prefixes=10, max_tokens=1_000)
        assert (hot.model_revision, len(hot.prefixes)) == ("revision", 3)
        assert [each.worth_tokens for each in hot.prefixes] == sorted(
            (each.worth_tokens for each in hot.prefixes), reverse=True
        )
        progress = await taking.client.prefixes.warm(list(map(as_told, hot.prefixes)), is_last=True)
        assert progress.num_waiting + progress.num_done == 3
        assert await worked_off(taking) == WarmProgress("ready", 0, 3, 0)
        told = await giving.client.prefixes.nodes()
        assert (told.model_revision, told.page_size, told.is_whole) == ("revision", 16, True)
        assert names(await taking.client.prefixes.nodes()) == names(told) != set()
        deltas = await collect(taking.client, generation(list(PROMPTS[1]), max_tokens=4))
        assert deltas[-1].num_cached_tokens == len(PROMPTS[1]) // 16 * 16
        same = await collect(giving.client, generation(list(PROMPTS[1]), max_tokens=4))
        assert [d.token_ids for d in deltas] == [d.token_ids for d in same]


class OneByOne:
    """An engine whose worker is asked without pipes, and tells a node a call."""

    model_revision = "revision"
    state: EngineState = "ready"

    def __init__(self) -> None:
        self.capacity: Capacity | None = small_capacity()
        self.warm_up = WarmUp(0.0)
        self.num_calls = 0
        self.cache, scheduler = build_core(engine_config(options()), small_capacity())
        self.calls = PrefixCalls(self.cache, scheduler, lambda: 0.0, max_nodes=1)

    def become_ready(self) -> None:
        raise AssertionError("nothing is computed here")

    async def admin(self, action: Literal["survey", "paths", "warm"], **arguments: Any) -> dict[str, Any]:
        self.num_calls += 1
        answer = self.calls.survey(arguments) if action == "survey" else self.calls.paths(arguments)
        return dict(msgspec.msgpack.decode(msgspec.msgpack.encode(answer)))


async def test_a_tree_of_many_portions_is_put_together_again() -> None:
    engine = OneByOne()
    engine.cache.note_time(0.0)
    for first in range(20):
        fill(engine.cache, [*range(32), *range(first, first + 16)])
    nodes = await Prefixes(engine).nodes()
    assert engine.num_calls == 21
    assert len(names(nodes)) == 2 + 20
    assert nodes.nodes[0].num_tokens == 32  # what all have in common is worth most
    assert engine.calls._survey is None, "what was told of a walk for names is kept"
    hot = await Prefixes(engine).hot(max_prefixes=3, max_tokens=1_000)
    assert [each.token_ids for each in hot.prefixes] == [tuple(range(32))]


async def test_limits_hold_and_an_empty_cache_has_nothing() -> None:
    async with thread_engine() as engine:
        assert (await engine.client.prefixes.nodes()).nodes == ()
        assert (await engine.client.prefixes.hot(max_prefixes=9, max_tokens=99)).prefixes == ()
        await serve(engine)
        one = await engine.client.prefixes.hot(max_prefixes=1, max_tokens=1_000)
        assert [len(each.token_ids) for each in one.prefixes] == [80]
        few = await engine.client.prefixes.hot(max_prefixes=9, max_tokens=79)
        assert sum(len(each.token_ids) for each in few.prefixes) <= 79


async def test_several_who_ask_at_once_all_get_all_of_it() -> None:
    async with thread_engine() as engine:
        await serve(engine)
        prefixes = engine.client.prefixes
        one, other, hot = await asyncio.gather(
            prefixes.nodes(), prefixes.nodes(), prefixes.hot(max_prefixes=9, max_tokens=999)
        )
        assert names(one) == names(other)
        assert len(hot.prefixes) == 3


async def test_what_is_computed_unasked_is_in_no_figure_of_requests() -> None:
    async with thread_engine() as engine:
        prefix = WarmPrefix(Namespace("revision"), tuple(PROMPTS[0]), 100.0)
        await engine.client.prefixes.warm([prefix], is_last=True)
        assert (await worked_off(engine)).num_done == 1
        assert engine.client.requests(10).requests == ()
        text = engine.client.render_metrics().body.decode()
        touched = ("sapwood_requests_total", "sapwood_prompt_tokens_total", "sapwood_queue_time_seconds_count")
        lines = [line for line in text.splitlines() if line.startswith((*touched, "sapwood_mrc_samples_total"))]
        assert len(lines) > len(touched)
        assert {line.rpartition(" ")[2] for line in lines} == {"0.0"}


async def test_an_engine_that_drains_takes_nothing_more_to_compute() -> None:
    async with thread_engine() as engine:
        await engine.client.drain()
        with pytest.raises(Draining):
            await engine.client.prefixes.warm([], is_last=True)


async def test_an_engine_that_is_to_end_does_not_compute_what_waits() -> None:
    async with thread_engine() as engine:
        many = [WarmPrefix(Namespace("revision"), tuple(prompt) * 20, 1.0) for prompt in PROMPTS]
        await engine.client.prefixes.warm(many, is_last=True)
    assert not engine.scheduler.has_work()
    assert engine.scheduler.check_invariants() == []


async def test_a_log_has_numbers_of_prefixes_and_no_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with thread_engine() as engine:
        ids = (201, 202, 203, 204) * 8
        namespace = Namespace("revision", None, "MARKER-extra", "MARKER-salt", "MARKER-tenant")
        await engine.client.prefixes.warm([WarmPrefix(namespace, ids, 1.0)], is_last=True)
        await worked_off(engine)
        for _ in range(2):
            await collect(engine.client, generation([*ids, 7], max_tokens=1))
        await engine.client.prefixes.nodes()
        assert (await engine.client.prefixes.hot(max_prefixes=9, max_tokens=999)).prefixes[0].token_ids == ids
    written = "\n".join(str(record.__dict__) for record in caplog.records)
    assert "num_prefixes" in written
    assert not any(text in written for text in ("MARKER", "201, 202", "[201"))
