"""What is told of calls: their phases add up, and only so many ended ones are kept."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import AsyncExitStack, aclosing

import pytest
from support_service import (
    DEADLINE_SECONDS,
    ENDLESS,
    collect,
    generation,
    options,
    settle,
    thread_engine,
)

from sapwood_contract.http import RequestView
from sapwood_contract.metrics import PHASES
from sapwood_engine.errors import GenerationFailed, Overloaded, WorkerDied
from sapwood_engine.service.client import EngineClient
from sapwood_engine.service.generation import Generation
from sapwood_engine.service.metrics import RequestTimes
from sapwood_engine.service.recent_requests import Call, RecentRequests

AT = 1_000.0
"""When calls are submitted here."""


def times(*, first_token: float | None = None, num_output_tokens: int = 0, detokenize: float = 0.0) -> RequestTimes:
    return RequestTimes(
        AT, 12, first_token=first_token, num_output_tokens=num_output_tokens, detokenize_seconds=detokenize
    )


def read(prompt: str = "a prompt of 20 bytes", *, tokenize_seconds: float | None = None, n: int = 1) -> Generation:
    return dataclasses.replace(generation(prompt, n=n), tokenize_seconds=tokenize_seconds)


def only(recent: RecentRequests, now: float) -> RequestView:
    (view,) = recent.listed(now, 10).requests
    return view


def test_a_call_waits_until_it_is_admitted_and_runs_until_it_ends() -> None:
    recent = RecentRequests()
    call = recent.began(read(tokenize_seconds=0.5), AT)
    call.choices.append(times())
    waiting = only(recent, AT + 2)
    assert (waiting.state, waiting.finish, waiting.num_cached_tokens) == ("waiting", None, None)
    assert waiting.phases == {"tokenize": 0.5, "queue": 2.0}
    call.admitted(queue_seconds=2.0, num_cached_tokens=16)
    running = only(recent, AT + 3)
    assert (running.state, running.num_cached_tokens) == ("running", 16)
    assert running.phases == {"tokenize": 0.5, "queue": 2.0, "prefill": 1.0}
    call.choices[0].first_token, call.choices[0].num_output_tokens = AT + 4, 3
    call.choices[0].detokenize_seconds = 0.25
    answering = only(recent, AT + 6)
    assert answering.phases == {"tokenize": 0.5, "queue": 2.0, "prefill": 2.0, "decode": 1.75, "detokenize": 0.25}
    assert (answering.num_prompt_tokens, answering.num_output_tokens) == (20, 3)
    recent.choice_ended(call, "length", AT + 6)
    ended = only(recent, AT + 100)
    assert (ended.state, ended.finish) == ("ended", "length")
    assert (ended.duration_seconds, ended.age_seconds) == (6.5, 100.5)
    assert ended.phases == answering.phases


TOLD: list[tuple[str, Call, float]] = [
    ("of ids, not of a text", Call("a", 3, None, AT, 1), AT + 1),
    ("waiting", Call("a", 3, 0.25, AT, 1, [times()]), AT + 1),
    ("in its prefill", Call("a", 3, 0.25, AT, 1, [times()], 0.5, 0), AT + 1),
    ("told of later than it was admitted", Call("a", 3, 0.25, AT, 1, [times()], 5.0, 0), AT + 1),
    ("answering", Call("a", 3, 0.25, AT, 1, [times(first_token=AT + 1, detokenize=0.1)], 0.5, 0), AT + 2),
    ("of one slow token", Call("a", 3, 0.25, AT, 1, [times(first_token=AT + 1, detokenize=9.0)], 0.5, 0), AT + 1.5),
    ("of two", Call("a", 3, None, AT, 2, [times(), times(first_token=AT + 1, detokenize=0.1)], 0.5, 0), AT + 2),
]


@pytest.mark.parametrize(("call", "until"), [row[1:] for row in TOLD], ids=[row[0] for row in TOLD])
def test_phases_are_in_order_none_is_negative_and_they_add_up_to_the_duration(call: Call, until: float) -> None:
    view = call.view(until, None)
    assert list(view.phases) == [phase for phase in PHASES if phase in view.phases]
    assert min(view.phases.values()) >= 0
    assert sum(view.phases.values()) == pytest.approx(view.duration_seconds)


def test_several_choices_are_one_call_that_ends_with_the_last() -> None:
    recent = RecentRequests()
    call = recent.began(read(n=2), AT)
    call.choices += [times(first_token=AT + 3, num_output_tokens=4), times(first_token=AT + 2, num_output_tokens=5)]
    call.admitted(queue_seconds=1.0, num_cached_tokens=0)
    call.admitted(queue_seconds=0.5, num_cached_tokens=16)
    recent.choice_ended(call, "stop", AT + 4)
    view = only(recent, AT + 4)
    assert (view.state, view.num_output_tokens, view.num_cached_tokens) == ("running", 9, 0)
    assert view.phases == {"queue": 0.5, "prefill": 1.5, "decode": 2.0, "detokenize": 0.0}
    recent.choice_ended(call, "abort", AT + 5)
    assert (only(recent, AT + 9).state, only(recent, AT + 9).finish) == ("ended", "abort")


def test_as_many_ended_calls_are_kept_as_there_is_room_for_and_the_latest_comes_first() -> None:
    recent = RecentRequests(max_ended=3)
    calls = [recent.began(dataclasses.replace(read(), request_id=f"call {i}"), AT + i) for i in range(6)]
    for call in calls[:5]:
        recent.choice_ended(call, "stop", AT + 10)
    recent.ended(calls[0], "error", AT + 11)
    listed = recent.listed(AT + 20, 10).requests
    assert [view.request_id for view in listed] == ["call 5", "call 4", "call 3", "call 2"]
    assert [view.request_id for view in recent.listed(AT + 20, 1).requests] == ["call 5", "call 4"]
    assert [view.request_id for view in recent.listed(AT + 20, 0).requests] == ["call 5"]


# --- of a real client over a fake executor


def listed(client: EngineClient) -> dict[str, RequestView]:
    return {view.request_id: view for view in client.requests(200).requests}


async def test_calls_are_listed_with_what_became_of_them() -> None:
    async with thread_engine() as engine:
        await collect(engine.client, generation("once upon a time", request_id="ends"))
        await collect(engine.client, generation("once upon a time", request_id="again", n=3))
        endless = engine.client.generate(generation("endless", max_tokens=ENDLESS, request_id="runs"))
        async with aclosing(endless):
            await anext(endless)
            assert (listed(engine.client)["runs"].state, listed(engine.client)["runs"].finish) == ("running", None)
            await engine.client.abort("runs")
            with pytest.raises(GenerationFailed):
                async for _ in endless:
                    pass
        left = engine.client.generate(generation("left", max_tokens=ENDLESS, request_id="left"))
        await anext(left)
        await left.aclose()
        found = listed(engine.client)
    assert list(found) == ["left", "runs", "again", "ends"]
    assert {name: view.finish for name, view in found.items()} == {
        "left": "abort",
        "runs": "abort",
        "again": "length",
        "ends": "length",
    }
    assert [found[name].num_cached_tokens for name in ("ends", "again")] == [0, 15]
    assert [found[name].num_output_tokens for name in ("ends", "again")] == [8, 24]
    for view in found.values():
        assert sum(view.phases.values()) == pytest.approx(view.duration_seconds)


async def test_who_waits_for_a_seat_waits_and_who_is_refused_ends_in_an_error() -> None:
    async with thread_engine(launch=options(max_queued=1)) as engine, AsyncExitStack() as leaving:
        async with asyncio.timeout(DEADLINE_SECONDS):
            for number in range(4):
                call = generation(f"endless {number}", max_tokens=ENDLESS, request_id=f"runs {number}")
                await anext(await leaving.enter_async_context(aclosing(engine.client.generate(call))))
        waiting = asyncio.create_task(collect(engine.client, generation("fifth", request_id="waits")))
        await settle(engine.client)
        with pytest.raises(Overloaded):
            await collect(engine.client, generation("sixth", request_id="refused"))
        found = listed(engine.client)
        assert list(found) == ["runs 0", "runs 1", "runs 2", "runs 3", "waits", "refused"]
        assert [found[name].state for name in ("runs 0", "waits", "refused")] == ["running", "waiting", "ended"]
        assert (found["refused"].finish, found["refused"].num_cached_tokens) == ("error", None)
        assert list(found["waits"].phases) == ["queue"]
        await leaving.aclose()
        await waiting
        assert {view.state for view in listed(engine.client).values()} == {"ended"}


async def test_calls_of_a_worker_that_died_end_in_an_error() -> None:
    async with thread_engine(fail_send=4) as engine:
        with pytest.raises(WorkerDied):
            await collect(engine.client, generation("endless", max_tokens=ENDLESS, request_id="runs"))
        view = listed(engine.client)["runs"]
    assert (view.state, view.finish) == ("ended", "error")
