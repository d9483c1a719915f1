"""The client against a real engine loop with a fake executor, over the real pipes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import pytest
from support_fake_executor import FakeExecutor, reference_tokens
from support_service import (
    DEADLINE_SECONDS,
    ENDLESS,
    VOCAB_SIZE,
    ThreadEngine,
    byte_tokenizer,
    collect,
    generation,
    new_client,
    options,
    settle,
    small_capacity,
    thread_engine,
)

from sapwood_contract.http import LoadSnapshot
from sapwood_engine.core.request import SamplingParams
from sapwood_engine.errors import Draining, GenerationFailed, Loading, Overloaded, RequestError, WorkerDied
from sapwood_engine.service.client import EngineClient, Generation, TextDelta
from sapwood_engine.service.generation import TokenInfo
from sapwood_engine.service.ipc import HttpChannel, WorkerChannel
from sapwood_engine.service.messages import Abort, Ready, Submit, ToWorker


@pytest.fixture
async def engine() -> AsyncIterator[ThreadEngine]:
    async with thread_engine() as running:
        yield running


def ids(deltas: list[TextDelta], index: int = 0) -> list[int]:
    return [token_id for delta in deltas if delta.index == index for token_id in delta.token_ids]


def text(deltas: list[TextDelta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


def expected(prompt: bytes, num_tokens: int = 8, *, seed: int | None = None) -> list[int]:
    sampling = None if seed is None else SamplingParams(seed=seed, temperature=1.0)
    return reference_tokens(prompt, num_tokens, sampling=sampling, vocab_size=VOCAB_SIZE)


def free_of_requests(load: LoadSnapshot) -> bool:
    held = (load.num_running, load.num_waiting, load.kv_active_tokens, load.kv_protected_tokens)
    return held == (0, 0, 0, 0) and load.radix_locked_nodes == 0


async def exhaust(deltas: AsyncGenerator[TextDelta, None]) -> None:
    """Read on to the end, which must not look like one."""
    async for delta in deltas:
        assert delta.finish_reason is None


async def first_delta(client: EngineClient, call: Generation) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS), aclosing(client.generate(call)) as deltas:
        await anext(deltas)


async def test_a_call_gets_the_models_tokens_as_text(engine: ThreadEngine) -> None:
    deltas = await collect(engine.client, generation("once upon a time"))
    assert ids(deltas) == expected(b"once upon a time")
    assert text(deltas) == byte_tokenizer().decode(ids(deltas))
    assert [delta.finish_reason for delta in deltas] == [None] * 7 + ["length"]
    assert (deltas[-1].num_prompt_tokens, deltas[-1].num_output_tokens) == (16, 8)


async def test_a_prompt_sent_again_is_cached_but_for_its_last_token(engine: ThreadEngine) -> None:
    first = await collect(engine.client, generation("once upon a time"))
    second = await collect(engine.client, generation("once upon a time"))
    assert (first[-1].num_cached_tokens, second[-1].num_cached_tokens) == (0, 15)
    assert ids(first) == ids(second)


async def test_many_calls_at_once_each_get_their_own_tokens(engine: ThreadEngine) -> None:
    prompts = [f"prompt number {i % 7}, of length {i * 5}" * (1 + i % 3) for i in range(24)]
    answers = await asyncio.gather(*(collect(engine.client, generation(p, request_id=p)) for p in prompts))
    assert [ids(answer) for answer in answers] == [expected(p.encode()) for p in prompts]
    assert free_of_requests(await settle(engine.client))


async def test_choices_are_seeded_one_apart_and_each_ends_once(engine: ThreadEngine) -> None:
    call = generation("a story", n=3, temperature=1.0, seed=2**63 - 2)
    deltas = await collect(engine.client, call)
    seeds = (2**63 - 2, 2**63 - 1, 0)
    assert [ids(deltas, i) for i in range(3)] == [expected(b"a story", seed=seed) for seed in seeds]
    ends = [delta.index for delta in deltas if delta.finish_reason is not None]
    assert sorted(ends) == [0, 1, 2]
    last = {delta.index: delta for delta in deltas}
    assert {delta.num_cached_tokens for delta in last.values()} == {0}


async def test_a_call_without_a_seed_draws_one_and_a_seeded_engine_repeats_its_draws() -> None:
    runs = []
    for _ in range(2):
        async with thread_engine() as engine:
            calls = [generation("a story", temperature=1.0) for _ in range(2)]
            runs.append([ids(await collect(engine.client, call)) for call in calls])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


async def test_a_stop_string_ends_the_choice_and_frees_its_pages(engine: ThreadEngine) -> None:
    whole = text(await collect(engine.client, generation("stop here", max_tokens=40)))
    stop = next(char for char in whole[5:] if char.isascii() and char not in whole[:5])
    deltas = await collect(engine.client, generation("stop here", max_tokens=ENDLESS, stop_strings=(stop,)))
    assert text(deltas) == whole[: whole.index(stop)]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
    assert free_of_requests(await settle(engine.client))


async def test_a_caller_that_leaves_frees_seat_and_pages_and_a_waiting_call_runs(
    engine: ThreadEngine,
) -> None:
    stay = [engine.client.generate(generation(f"endless {i}", max_tokens=ENDLESS)) for i in range(4)]
    async with asyncio.timeout(DEADLINE_SECONDS):
        for deltas in stay:
            await anext(deltas)
    assert engine.client.load.num_running == 4
    waiting = asyncio.create_task(collect(engine.client, generation("the fifth")))
    assert (await settle(engine.client)).num_waiting == 1
    await stay[0].aclose()
    assert ids(await waiting) == expected(b"the fifth")
    for deltas in stay[1:]:
        await deltas.aclose()
    assert free_of_requests(await settle(engine.client))


async def test_a_caller_that_leaves_before_its_first_token_leaves_nothing_behind(
    engine: ThreadEngine,
) -> None:
    for num_turns in range(6):
        task = asyncio.create_task(collect(engine.client, generation("long " * 60, max_tokens=ENDLESS)))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert free_of_requests(await settle(engine.client))


async def test_an_abort_matches_its_call_exactly_and_ends_it_with_an_error(engine: ThreadEngine) -> None:
    other = engine.client.generate(generation(request_id="call-1", max_tokens=ENDLESS))
    aborted = engine.client.generate(generation(request_id="call", max_tokens=ENDLESS, n=2))
    async with asyncio.timeout(DEADLINE_SECONDS), aclosing(other), aclosing(aborted):
        await anext(other)
        await anext(aborted)
        assert await engine.client.abort("call") == 2
        with pytest.raises(GenerationFailed) as failure:
            await exhaust(aborted)
        assert failure.value.reason == "abort"
        assert await engine.client.abort("call") == 0
        await anext(other)
        assert engine.client.load.num_running <= 2
    assert free_of_requests(await settle(engine.client))


async def test_calls_of_one_name_do_not_meet(engine: ThreadEngine) -> None:
    calls = [generation(f"text {i}", request_id="the same") for i in range(3)]
    answers = await asyncio.gather(*(collect(engine.client, call) for call in calls))
    assert [ids(answer) for answer in answers] == [expected(f"text {i}".encode()) for i in range(3)]


async def test_a_full_queue_refuses_with_a_time_to_come_back_and_keeps_what_it_has() -> None:
    launch = options(max_running=1, max_queued=2)
    async with thread_engine(launch=launch) as engine:
        client = engine.client
        running = client.generate(generation("endless", max_tokens=ENDLESS))
        async with asyncio.timeout(DEADLINE_SECONDS), aclosing(running):
            await anext(running)
            waiting = [asyncio.create_task(collect(client, generation(f"waiting {i}"))) for i in range(2)]
            assert (await settle(client)).num_waiting == 2
            with pytest.raises(Overloaded, match="limit is 2") as refusal:
                await first_delta(client, generation("one too many"))
            assert refusal.value.status == 429
            assert refusal.value.retry_after_seconds is not None
            assert 1 <= refusal.value.retry_after_seconds <= 60
        assert [ids(await task) for task in waiting] == [expected(f"waiting {i}".encode()) for i in range(2)]


async def test_a_call_that_the_scheduler_refuses_gets_its_reason(engine: ThreadEngine) -> None:
    too_long = generation("x" * 70_000, max_tokens=1)
    with pytest.raises(RequestError) as refusal:
        await first_delta(engine.client, too_long)
    assert (refusal.value.status, refusal.value.code) == (400, "context_length_exceeded")


async def test_a_draining_engine_refuses_new_calls_and_finishes_the_running_ones(
    engine: ThreadEngine,
) -> None:
    client = engine.client
    running = asyncio.create_task(collect(client, generation("finish me", max_tokens=300)))
    await settle(client)
    drained = asyncio.create_task(client.drain(DEADLINE_SECONDS))
    await asyncio.sleep(0)
    with pytest.raises(Draining) as refusal:
        await first_delta(client, generation())
    assert (refusal.value.status, refusal.value.retry_after_seconds) == (503, 30)
    assert ids(await running) == expected(b"finish me", 300)
    await drained
    assert client.state == "draining"


async def test_a_drain_that_is_over_its_deadline_ends_the_rest_with_an_error(engine: ThreadEngine) -> None:
    running = asyncio.create_task(collect(engine.client, generation(max_tokens=ENDLESS)))
    await settle(engine.client)
    await engine.client.drain(0)
    with pytest.raises(GenerationFailed, match="incomplete"):
        await running
    assert free_of_requests(await settle(engine.client))


async def test_a_drain_without_a_deadline_takes_that_of_the_options() -> None:
    async with thread_engine(launch=options(drain_seconds=0.0)) as engine:
        running = asyncio.create_task(collect(engine.client, generation(max_tokens=ENDLESS)))
        await settle(engine.client)
        await engine.client.drain()
        with pytest.raises(GenerationFailed, match="incomplete"):
            await running


async def connected(channel: HttpChannel) -> None:
    """Wait until the worker's end takes messages: pipes connect in a thread of their own."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                channel.send(Abort("nobody"))
            except WorkerDied:
                await asyncio.sleep(0)
            else:
                return


async def test_the_worker_is_told_how_long_the_cache_keeps_what_a_call_leaves() -> None:
    channel = HttpChannel()
    worker = WorkerChannel(channel.addresses)
    client = new_client(channel, options())
    client.receive(Ready(small_capacity(), {}, {}))
    try:
        await connected(channel)
        call = replace(generation(), cache_pin_seconds=60.0)
        running = asyncio.create_task(collect(client, call))
        received: list[ToWorker] = []
        while not any(isinstance(message, Submit) for message in received):
            assert await asyncio.to_thread(worker.wait, DEADLINE_SECONDS)
            received += worker.receive_ready()
        message = received[-1]
        assert isinstance(message, Submit)
        assert message.request.cache_pin_seconds == 60.0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    finally:
        worker.close()
        channel.close()


async def test_nothing_is_taken_before_the_engine_is_ready() -> None:
    channel = HttpChannel()
    client = EngineClient(channel, model_name="fake", max_queued=1, drain_seconds=1.0)
    try:
        assert client.state == "loading"
        with pytest.raises(Loading):
            _ = client.tokenizer
        with pytest.raises(Loading) as refusal:
            await first_delta(client, generation())
        assert refusal.value.retry_after_seconds == 5
        with pytest.raises(Loading):
            await client.admin("check")
    finally:
        channel.close()


async def test_log_probabilities_come_with_every_token_and_with_the_prompt() -> None:
    async with thread_engine() as engine:
        call = generation("prompt", num_logprobs=0, num_prompt_logprobs=0)
        deltas = await collect(engine.client, call)
    infos = [info for delta in deltas for info in delta.logprobs]
    assert [info.token_id for info in infos] == ids(deltas)
    assert b"".join(info.bytes for info in infos) == b"".join(map(byte_tokenizer().token_bytes, ids(deltas)))
    prompt = deltas[0].prompt_logprobs
    assert prompt is not None
    assert prompt[0] is None
    known = [info for info in prompt if isinstance(info, TokenInfo)]
    assert [info.token_id for info in known] == list(b"rompt")
    assert all(delta.prompt_logprobs is None for delta in deltas[1:])


async def test_metrics_count_each_prompt_token_once_and_each_ending(engine: ThreadEngine) -> None:
    await collect(engine.client, generation("once upon a time"))
    await collect(engine.client, generation("once upon a time"))
    await first_delta(engine.client, generation("left early", max_tokens=ENDLESS))
    await settle(engine.client)
    lines = engine.client.render_metrics().body.decode().splitlines()
    values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
    assert values['sapwood_prompt_tokens_total{model="fake",source="device"}'] == 15
    assert values['sapwood_prompt_tokens_total{model="fake",source="compute"}'] == 16 + 1 + 10
    assert values['sapwood_requests_total{finish_reason="length",model="fake"}'] == 2
    assert values['sapwood_requests_total{finish_reason="abort",model="fake"}'] == 1
    assert values['sapwood_requests_running{model="fake"}'] == 0
    states = [f'sapwood_kv_tokens{{model="fake",state="{s}"}}' for s in ("active", "protected", "evictable", "free")]
    assert sum(values[state] for state in states) == values['sapwood_kv_capacity_tokens{model="fake"}']


async def test_the_cache_can_be_looked_at_and_flushed(engine: ThreadEngine) -> None:
    await collect(engine.client, generation("once upon a time"))
    tree = await engine.client.admin("cache", max_nodes=10)
    assert tree["namespaces"][0]["namespace"]["model_revision"] == "revision"
    assert "token_ids" not in tree["namespaces"][0]["nodes"][0]
    dropped = (await engine.client.admin("flush"))["num_tokens"]
    assert dropped == 16 + 7
    again = await collect(engine.client, generation("once upon a time"))
    assert again[-1].num_cached_tokens == 0


async def test_answers_are_the_same_with_overlap_off_and_the_cache_off() -> None:
    prompts = ["a shared beginning, one end", "a shared beginning, another end", "something else " * 9]
    for changes in (
        {},
        {"overlap": "off"},
        {"prefix_cache": "off"},
        {"partial_pages": "off"},
        {"chunk_tokens": 3},
    ):
        async with thread_engine(executor=FakeExecutor(small_capacity()), launch=options(**changes)) as engine:
            calls = [collect(engine.client, generation(prompt, max_tokens=20)) for prompt in prompts * 2]
            answers = await asyncio.gather(*calls)
        assert [ids(answer) for answer in answers] == [expected(p.encode(), 20) for p in prompts * 2]


@pytest.mark.parametrize("seed", range(3))
async def test_clients_that_leave_at_random_leave_nothing_behind(seed: int) -> None:
    """200 clients with shared beginnings, too small a cache; each leaves after a number of deltas."""
    chance = random.Random(seed)
    executor = FakeExecutor(small_capacity(num_pages=64, max_seats=16))
    async with thread_engine(executor=executor, launch=options(max_running=16)) as engine:
        client = engine.client

        async def visit(number: int, patience: int) -> None:
            call = generation(f"{number % 5} a shared beginning " * (1 + number % 4), max_tokens=30)
            async with aclosing(client.generate(call)) as deltas:
                for _ in range(patience):
                    if await anext(deltas, None) is None:
                        return

        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.gather(*(visit(number, chance.randrange(34)) for number in range(200)))
        assert free_of_requests(await settle(client))
        assert ids(await collect(client, generation("and after"))) == expected(b"and after")
