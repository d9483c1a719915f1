"""The screen shows what the polls say, and its keys do what they say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support_top import LOAD, REQUESTS, FakeSource, figures, node, poll, polled, rows_of, sample, text_of
from textual.pilot import Pilot

from sapwood_contract.http import EngineLoad
from sapwood_tools.top.app import TopApp
from sapwood_tools.top.dialogs import Confirm, Help
from sapwood_tools.top.gateway_figures import GatewayFigures
from sapwood_tools.top.samples import Sample
from sapwood_tools.top.source import GatewayAnswer, Poll

ONE, OTHER = "http://127.0.0.1:8001", "http://127.0.0.1:9001"


@asynccontextmanager
async def running(source: FakeSource) -> AsyncIterator[tuple[TopApp, Pilot[None]]]:
    """The app after all polls of ``source``."""
    app = TopApp(source, interval_seconds=0)
    async with app.run_test(size=(130, 40)) as pilot:
        await polled(pilot, len(source.polls))
        yield app, pilot


async def test_the_head_tells_model_state_rates_and_cache() -> None:
    async with running(FakeSource([poll(sample(0.0)), poll(sample(1.0))])) as (app, _):
        lines = text_of(app, "head").splitlines()
    assert lines[0] == "smollm2-135m · ready · chat-0 · 2 running, 1 waiting"
    assert lines[1] == "last 1.0 s: tokens/s in 1,280, out 212 · hit rate 75% · evicted 10 tokens · preempted 0"
    assert lines[2].startswith("TTFT p50 27 ms, p95 ")
    assert lines[3].endswith("24,576 tokens  █ active 8%  ▓ protected 17%  ▒ evictable 33%  · free 42%")


async def test_what_is_unknown_is_never_shown_as_zero() -> None:
    silent = Sample(1.0, problem="does not answer: nobody is there")
    async with running(FakeSource([poll(silent)])) as (app, _):
        head, curve, nodes = (text_of(app, name) for name in ("head", "curve", "nodes"))
        assert rows_of(app, "requests") == []
    assert head.splitlines()[0] == "– · gone · chat-0 · – running, – waiting"
    assert head.splitlines()[-1] == f"{ONE} does not answer: nobody is there"
    assert head.splitlines()[1:-1] == [
        "last –: tokens/s in –, out – · hit rate – · evicted – tokens · preempted –",
        "TTFT p50 –, p95 – · ITL p50 –, p95 –",
        "KV –",
    ]
    assert (curve, nodes) == ("hit rate by memory –", "cache –")


async def test_an_engine_that_comes_back_is_shown_again() -> None:
    polls = [poll(sample(0.0)), poll(Sample(1.0, problem="does not answer")), poll(sample(2.0))]
    async with running(FakeSource(polls)) as (app, _):
        assert text_of(app, "head").splitlines()[0].startswith("smollm2-135m · ready")
        assert "does not answer" not in text_of(app, "head")


async def test_what_only_a_key_opens_is_told_beside_what_is_open() -> None:
    closed = Sample(0.0, figures=figures(0.0), problem="answers 401 Unauthorized: give a key")
    async with running(FakeSource([poll(closed), poll(replace(closed, at=1.0, figures=figures(1.0)))])) as (app, _):
        head = text_of(app, "head")
    assert "out 212" in head
    assert head.startswith("– · unknown · ")
    assert head.endswith("answers 401 Unauthorized: give a key")


async def test_requests_are_listed_with_their_phases_and_ids_cannot_drive_the_terminal() -> None:
    async with running(FakeSource([poll(sample(0.0))])) as (app, _):
        rows = rows_of(app, "requests")
    assert rows[0][:7] == ["chat-7f3a", "running", "4.2 s", "1,300", "1,024", "61", "4.2 s"]
    assert rows[0][7] == "·░░▒▒▒▒" + "█" * 16 + "▪"
    assert rows[1][0] == r"'summarise \x1b[31m7'"
    assert rows[2][:5] == ["chat-81bc", "waiting", "900 ms", "512", "–"]
    assert [row[1] for row in rows[3:]] == ["stop", "abort", "error"]


async def test_a_prefix_is_seen_to_appear_to_be_locked_and_to_be_evicted() -> None:
    polls = [
        poll(sample(0.0, node(1))),
        poll(sample(1.0, node(1), node(2, 1, tokens=64, locks=1))),
        poll(sample(2.0, node(1), node(2, 1, tokens=64))),
        poll(sample(3.0, node(1))),
    ]
    async with running(FakeSource(polls)) as (app, _):
        lines = [" ".join(line.split()) for line in text_of(app, "seen").splitlines()]
        nodes = text_of(app, "nodes")
    assert lines == [
        "seen in the cache",
        "0 s ago evicted #2 64 tokens",
        "1.0 s ago unlocked #2 64 tokens",
        "2.0 s ago locked #2 64 tokens",
        "2.0 s ago appeared #2 64 tokens",
    ]
    assert "#2" not in nodes


async def test_the_largest_nodes_come_first_with_their_users_and_hits() -> None:
    async with running(FakeSource([poll(sample(0.0))])) as (app, _):
        lines = text_of(app, "nodes").splitlines()
    assert lines[0] == "cache: 3 nodes, 2 in use; the largest"
    assert " ".join(lines[1].split()) == "1,024 tokens #1 ● in use by 2 hit 9 times"
    assert " ".join(lines[3].split()) == "64 tokens #3 hit 1 time"


async def test_the_curve_is_drawn_with_what_it_says_of_more_memory() -> None:
    async with running(FakeSource([poll(sample(0.0))])) as (app, _):
        curve = text_of(app, "curve")
    assert curve.splitlines()[0] == "hit rate by memory ▂▃▃▄▄▅▅▅▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇"
    assert curve.splitlines()[1].startswith(
        "now 41%, ×2 63%, ×4 79%, ×8 85%, without bound 85% · working set 40,960 tokens"
    )


# --- keys


async def test_abort_asks_first_and_only_yes_is_a_yes() -> None:
    source = FakeSource([poll(sample(0.0))])
    async with running(source) as (app, pilot):
        await pilot.press("a", "enter", "n", "a", "escape")
        assert source.aborted == []
        await pilot.press("down", "a")
        assert isinstance(app.screen, Confirm)
        assert app.screen.question == r"Abort the request 'summarise \x1b[31m7' of chat-0?"
        await pilot.press("y")
        await pilot.pause()
        assert text_of(app, "message") == r"'summarise \x1b[31m7': 1 choice told to stop"
    assert source.aborted == [(ONE, REQUESTS[1].request_id)]


async def test_what_has_ended_cannot_be_aborted() -> None:
    source = FakeSource([poll(sample(0.0))])
    async with running(source) as (app, pilot):
        await pilot.press("ctrl+end", "a")
        assert app.screen is app.screen_stack[0]
        assert text_of(app, "message").startswith("no request that waits or runs is marked")


async def test_flush_asks_first_and_tells_what_went() -> None:
    source = FakeSource([poll(sample(0.0))])
    async with running(source) as (app, pilot):
        await pilot.press("f", "n")
        assert source.flushed == []
        await pilot.press("f", "y")
        await pilot.pause()
        assert text_of(app, "message") == "chat-0: 8,192 tokens flushed"
    assert source.flushed == [ONE]


async def test_why_an_order_was_not_carried_out_is_told() -> None:
    source = FakeSource([poll(sample(0.0))], problem="answers 403 Forbidden: closed")
    async with running(source) as (app, pilot):
        await pilot.press("f", "y")
        await pilot.pause()
        assert text_of(app, "message") == "the engine answers 403 Forbidden: closed"


async def test_paused_it_asks_nobody_until_it_goes_on() -> None:
    source = FakeSource([poll(sample(0.0))])
    async with running(source) as (app, pilot):
        await pilot.press("p")
        assert text_of(app, "message") == "paused: p goes on"
        source.add(poll(sample(1.0)), poll(sample(2.0)))
        await pilot.pause()
        assert app.num_polls == 1
        await pilot.press("p")
        await polled(pilot, 2)


async def test_requests_are_sorted_by_one_column_after_the_other() -> None:
    async with running(FakeSource([poll(sample(0.0))])) as (app, pilot):
        first = []
        for _ in range(5):
            await pilot.press("s")
            first.append((app.order, rows_of(app, "requests")[0][0]))
    assert first == [
        ("prompt", "chat-6d0a"),
        ("cached", "chat-7f3a"),
        ("output", "chat-6dff"),
        ("took", "chat-6dff"),
        ("arrival", "chat-7f3a"),
    ]


async def test_the_mark_follows_its_request() -> None:
    fewer = replace(sample(1.0), requests=REQUESTS[1:])
    source = FakeSource([poll(sample(0.0))])
    async with running(source) as (app, pilot):
        await pilot.press("down", "down")
        await pilot.press("s")
        assert app.selected == REQUESTS[2]
    source = FakeSource([poll(sample(0.0)), poll(fewer)])
    async with running(source) as (app, _):
        assert app.selected == REQUESTS[1]


async def test_help_tells_every_key() -> None:
    async with running(FakeSource([poll(sample(0.0))])) as (app, pilot):
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        await pilot.press("escape")
        assert app.screen is app.screen_stack[0]


# --- several engines, and a gateway


def two(at: float) -> Poll:
    """Two engines; the second one loads, or drains."""
    idle = replace(LOAD, num_running=0, num_waiting=0)
    other = replace(
        sample(at, node(40, tokens=48)),
        load=EngineLoad("smollm2-135m", "draining", idle),
        requests=(replace(REQUESTS[0], request_id="other"),),
    )
    routed = (("prefix", 8.0 * at), ("least_load", 2.0 * at))
    gateway = GatewayFigures(3, 1, (("ready", 1), ("resting", 1), ("gone", 0)), routed)
    return poll(sample(at), other, gateway=GatewayAnswer("http://127.0.0.1:8081", at, gateway))


async def test_several_engines_have_a_line_each_and_the_marked_one_is_shown() -> None:
    source = FakeSource([two(0.0), two(1.0)])
    async with running(source) as (app, pilot):
        rows = rows_of(app, "replicas")
        assert rows[0] == ["chat-0", "ready", "2", "1", "1,280", "212", "75%", "27 ms", "25%"]
        assert rows[1][:4] == ["chat-1", "draining", "0", "0"]
        await pilot.press("shift+tab", "down")
        assert "draining · chat-1" in text_of(app, "head")
        assert [row[0] for row in rows_of(app, "requests")] == ["other"]
        assert "#40" in text_of(app, "nodes")
        await pilot.press("tab", "a", "y")
        await pilot.pause()
    assert source.aborted == [(OTHER, "other")]


async def test_the_engine_that_was_marked_stays_shown_as_polls_come() -> None:
    source = FakeSource([two(0.0)])
    async with running(source) as (app, pilot):
        await pilot.press("shift+tab", "down")
        source.add(two(1.0), two(2.0))
        await polled(pilot, 3)
        assert "draining · chat-1" in text_of(app, "head")


async def test_a_single_engine_needs_no_table_of_engines() -> None:
    async with running(FakeSource([poll(sample(0.0))])) as (app, _):
        assert not app.query_one("#replicas").display
        assert not app.query_one("#gateway").display


async def test_a_gateway_has_a_line_of_its_own() -> None:
    async with running(FakeSource([two(0.0), two(1.0)])) as (app, _):
        assert app.query_one("#gateway").display
        assert text_of(app, "gateway") == (
            "gateway 127.0.0.1:8081 · 3 running, 1 queued · replicas 1 ready, 1 resting"
            " · routed by prefix 80%, least_load 20%"
        )


@pytest.mark.parametrize("polls", [[], [Poll(())]], ids=["none has come", "nobody is there"])
async def test_without_an_engine_it_says_so_and_keys_do_no_harm(polls: list[Poll]) -> None:
    source = FakeSource(polls)
    async with running(source) as (app, pilot):
        await pilot.press("a", "f", "s", "p", "p")
        assert text_of(app, "head") == ("there is no engine: name one with --engine" if polls else "asking …")
    assert (source.aborted, source.flushed) == ([], [])
