"""Fail the n-th call, for every n: every stream ends with its answer or an error, nothing leaks, the
next call works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pytest
from support_fake_executor import FakeExecutor, reference_tokens
from support_service import (
    DEADLINE_SECONDS,
    ENDLESS,
    VOCAB_SIZE,
    collect,
    generation,
    options,
    settle,
    small_capacity,
    thread_engine,
)
from support_torch_executor import capacity, tiny_executor

from sapwood_engine.core.ports import Executor
from sapwood_engine.core.request import SamplingParams
from sapwood_engine.errors import GenerationFailed, SapwoodError, WorkerDied
from sapwood_engine.service.client import EngineClient, Generation, TextDelta

PROMPTS = (
    "a shared beginning, one",
    "a shared beginning, two",
    "another text, so long that it takes chunks " * 2,
)
MOST_CALLS = 60
"""More executor steps, or sends of the worker, than the workload has."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended."""

    deltas: tuple[TextDelta, ...]
    error: SapwoodError | None

    def ids(self, index: int = 0) -> list[int]:
        return [token for delta in self.deltas if delta.index == index for token in delta.token_ids]


def calls() -> list[Generation]:
    return [
        generation(PROMPTS[0], max_tokens=6),
        generation(PROMPTS[1], max_tokens=9, n=2, temperature=1.0, seed=7),
        generation(PROMPTS[2], max_tokens=4),
    ]


async def attempt(client: EngineClient, call: Generation) -> Answer:
    """Run a call to its end, whatever that is."""
    deltas: list[TextDelta] = []
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            async for delta in client.generate(call):
                deltas.append(delta)
    except SapwoodError as error:
        return Answer(tuple(deltas), error)
    return Answer(tuple(deltas), None)


def check_whole_or_prefix(answer: Answer, call: Generation) -> None:
    """An answer without an error is the model's; one with an error is a beginning of it, and has no
    finish.
    """
    prompt = bytes(call.prompt_ids)
    for index in range(call.n):
        sampling = None if call.seed is None else SamplingParams(seed=call.seed + index, temperature=1.0)
        whole = reference_tokens(prompt, call.stop.max_tokens, sampling=sampling, vocab_size=VOCAB_SIZE)
        got = answer.ids(index)
        ends = [d for d in answer.deltas if d.index == index and d.finish_reason is not None]
        assert got == whole[: len(got)]
        assert bool(ends) == (len(got) == len(whole))
        assert len(ends) == 1 or answer.error is not None


@pytest.mark.parametrize("overlap", ["on", "off"])
async def test_a_step_that_fails_ends_its_calls_with_an_error_and_nothing_else(
    overlap: Literal["on", "off"],
) -> None:
    num_failed = 0
    for number in range(MOST_CALLS):
        executor = FakeExecutor(small_capacity(), fail_launches=frozenset({number}))
        async with thread_engine(executor=executor, launch=options(overlap=overlap)) as engine:
            answers = await asyncio.gather(*(attempt(engine.client, call) for call in calls()))
            for answer, call in zip(answers, calls(), strict=True):
                check_whole_or_prefix(answer, call)
                assert answer.error is None or isinstance(answer.error, GenerationFailed)
            load = await settle(engine.client)
            assert (load.num_running, load.num_waiting, load.kv_active_tokens, load.kv_protected_tokens) == (0,) * 4
            failed = any(answer.error for answer in answers)
            for call in calls():
                again = await attempt(engine.client, call)
                check_whole_or_prefix(again, call)
                assert again.error is None or not failed
            num_failed += failed
            if not failed and number > 0:
                break
    else:
        pytest.fail(f"{MOST_CALLS} steps were not enough for the workload")
    assert num_failed == number


@pytest.mark.parametrize(
    "make", [lambda: FakeExecutor(small_capacity()), lambda: tiny_executor(capacity())], ids=["fake", "torch"]
)
async def test_a_call_that_nothing_can_be_drawn_for_ends_alone_and_is_told_why(make: Callable[[], Executor]) -> None:
    async with thread_engine(executor=make()) as engine:
        wanted = await attempt(engine.client, calls()[0])
    executor = make()
    every_id = frozenset(range(executor.capacity.vocab_size))
    banned = generation(PROMPTS[0], min_tokens=2, stop_token_ids=every_id, request_id="banned")
    async with thread_engine(executor=executor) as engine:
        failed, answer = await asyncio.gather(attempt(engine.client, banned), attempt(engine.client, calls()[0]))
        load = await settle(engine.client)
    assert isinstance(failed.error, GenerationFailed)
    assert "every token is banned" in str(failed.error)
    assert failed.ids() == []
    assert (answer.ids(), answer.error) == (wanted.ids(), None)
    assert (load.num_running, load.kv_active_tokens, load.kv_protected_tokens) == (0, 0, 0)


async def test_a_worker_that_cannot_speak_any_more_ends_every_call_with_an_error() -> None:
    for number in range(1, MOST_CALLS):
        async with thread_engine(fail_send=number) as engine:
            answers = await asyncio.gather(*(attempt(engine.client, call) for call in calls()))
            for answer, call in zip(answers, calls(), strict=True):
                check_whole_or_prefix(answer, call)
                assert answer.error is None or isinstance(answer.error, WorkerDied)
            if all(answer.error is None for answer in answers):
                break
            assert await engine.attending == 1
            assert isinstance((await attempt(engine.client, calls()[0])).error, WorkerDied)
    else:
        pytest.fail(f"{MOST_CALLS} sends were not enough for the workload")
    assert number > len(calls())


async def test_a_broken_cache_is_counted_and_not_used_again_and_the_engine_serves_on() -> None:
    async with thread_engine() as engine:
        first = await collect(engine.client, generation("once upon a time"))
        await settle(engine.client)
        # The worker sleeps now. A page is lost: no part of the engine holds it any more.
        engine.cache.allocate(1)
        faults = (await engine.client.admin("check"))["faults"]
        assert any("lost" in fault for fault in faults)
        again = [await collect(engine.client, generation("once upon a time")) for _ in range(2)]
        metrics = engine.client.render_metrics().body.decode()
    assert "sapwood_cache_invariant_failures_total 1.0" in metrics
    for answer in again:
        assert [delta.token_ids for delta in answer] == [delta.token_ids for delta in first]
        assert answer[-1].num_cached_tokens == 0


async def test_an_abort_at_every_moment_leaves_nothing_behind() -> None:
    async with thread_engine() as engine:
        client = engine.client
        for num_deltas in range(12):
            call = generation(PROMPTS[2], max_tokens=ENDLESS, request_id=f"call {num_deltas}", n=2)
            with pytest.raises(GenerationFailed):
                await abort_after(client, call, num_deltas)
            load = await settle(client)
            assert (load.num_running, load.num_waiting, load.kv_active_tokens, load.kv_protected_tokens) == (0,) * 4


async def abort_after(client: EngineClient, call: Generation, num_deltas: int) -> None:
    """Abort by name after so many deltas, 0 being before the first, and read on to the end."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        deltas = client.generate(call)
        if num_deltas == 0:
            first = asyncio.create_task(anext(deltas))
            await asyncio.sleep(0)
            await client.abort(call.request_id)
            await first
        for _ in range(num_deltas):
            await anext(deltas)
        await client.abort(call.request_id)
        async for _ in deltas:
            pass
