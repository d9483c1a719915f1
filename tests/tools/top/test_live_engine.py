"""`sapwood top` over a live engine: a prefix appears, is locked, is let go and is evicted while requests run.

Everything is real but for the model: client, pipes, engine loop, cache, HTTP and the poller.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
from support_api import TEXT, served
from support_fake_executor import FakeExecutor
from support_service import options, small_capacity, thread_engine
from support_top import rows_of, text_of
from textual.pilot import Pilot

from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.api.app import build_app
from sapwood_engine.core.step import StepResult
from sapwood_tools.admin_client import client_session
from sapwood_tools.top import cli
from sapwood_tools.top.app import TopApp
from sapwood_tools.top.engines import named
from sapwood_tools.top.poller import Poller
from sapwood_tools.top.source import Poll

NUM_PAGES, PAGE_SIZE = 128, 16
DEADLINE_SECONDS = 60.0
"""Of every wait; reached only by a fault."""
PREFIX = "a prefix that others share; " * 8
"""224 tokens, 14 pages."""


class Paced(FakeExecutor):
    """A device on which each step takes 30 milliseconds, as on a small machine."""

    def collect(self) -> StepResult:
        threading.Event().wait(0.03)
        return super().collect()


@dataclass(slots=True)
class Running:
    """An engine, by its two addresses."""

    api: httpx.AsyncClient
    admin_url: str

    def call(self, request_id: str, prompt: str, max_tokens: int) -> asyncio.Task[httpx.Response]:
        """Send a request and go on."""
        body = {"model": "fake", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
        return asyncio.create_task(self.api.post(TEXT, json=body, headers={"x-request-id": request_id}))


@asynccontextmanager
async def running() -> AsyncIterator[Running]:
    capacity = small_capacity(num_pages=NUM_PAGES, page_size=PAGE_SIZE, max_step_tokens=256)
    async with (
        thread_engine(executor=Paced(capacity), launch=options(chunk_tokens=256, max_step_tokens=256)) as engine,
        served(build_app(engine.client)) as address,
        served(build_admin_app(engine.client)) as admin_url,
        httpx.AsyncClient(base_url=address, timeout=60) as api,
    ):
        yield Running(api, admin_url)


class Noticed(Poller):
    """A poller that tells after each poll."""

    has_polled: asyncio.Event

    async def ask(self) -> Poll:
        poll = await super().ask()
        self.has_polled.set()
        return poll


@dataclass(slots=True)
class Screen:
    """What a person sees."""

    app: TopApp
    pilot: Pilot[None]
    has_polled: asyncio.Event

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once it shows what is waited for, after one poll or several."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not holds():
                self.has_polled.clear()
                await self.has_polled.wait()

    def states(self) -> dict[str, str]:
        """Request -> state, as the table says."""
        return {row[0]: row[1] for row in rows_of(self.app, "requests")}

    def nodes(self) -> dict[str, str]:
        """Node -> what is told of it."""
        lines = (line.split("#") for line in text_of(self.app, "nodes").splitlines()[1:])
        return {serial.split()[0]: serial for _, serial in lines}

    def seen(self) -> set[tuple[str, str]]:
        """(what happened, to which node); the screen has room for the latest of them."""
        view = self.app.engine
        return set() if view is None else {(seen.change.kind, str(seen.change.node.serial)) for seen in view.seen}


@asynccontextmanager
async def screen(engine: Running) -> AsyncIterator[Screen]:
    async with client_session(key=None, timeout_seconds=DEADLINE_SECONDS) as session:
        source = Noticed(session, named([engine.admin_url], None, None))
        source.has_polled = asyncio.Event()
        app = TopApp(source, interval_seconds=0.1)
        async with app.run_test(size=(130, 40)) as pilot:
            yield Screen(app, pilot, source.has_polled)


async def test_a_prefix_appears_is_locked_and_is_evicted_while_requests_run_and_keys_abort_and_flush() -> None:
    async with running() as engine, screen(engine) as top:
        await top.until(lambda: "· ready ·" in text_of(top.app, "head"))

        sharing = engine.call("sharing", PREFIX, 1_000)
        await top.until(lambda: top.states().get("sharing") == "running" and bool(top.nodes()))
        ((prefix, told),) = top.nodes().items()
        assert "● in use by 1" in told
        assert {("appeared", prefix), ("locked", prefix)} <= top.seen()

        await top.pilot.press("a", "y")
        await top.until(lambda: text_of(top.app, "message") == "sharing: 1 choice told to stop")
        await top.until(lambda: top.states()["sharing"] == "abort" and ("unlocked", prefix) in top.seen())
        assert "in use" not in top.nodes()[prefix]
        assert (await sharing).status_code == 500

        # Older than this one, so that it goes first when the next one needs more than is free.
        assert (await engine.call("newer", "n" * 600, 2)).status_code == 200
        large = engine.call("large", "l" * 1_600, 200)
        await top.until(lambda: ("evicted", prefix) in top.seen() and top.states()["large"] == "running")
        assert prefix not in top.nodes()

        await top.pilot.press("ctrl+home", "a", "y")
        await top.until(lambda: top.states()["large"] == "abort")
        assert (await large).status_code == 500
        await top.pilot.press("f", "y")
        await top.until(lambda: text_of(top.app, "nodes").startswith("cache: 0 nodes"))
        assert text_of(top.app, "message").endswith("tokens flushed")


async def test_once_prints_the_same_as_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    async with running() as engine:
        assert (await engine.call("first", PREFIX, 4)).status_code == 200
        assert await asyncio.to_thread(cli.main, [f"--engine={engine.admin_url}", "--interval=0.1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("fake · ready · 127.0.0.1:")
    assert next(line for line in printed if line.startswith("first ")).split()[1] == "length"
    assert "seen in the cache" in printed
