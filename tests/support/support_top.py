"""Answers of engines and gateways as `sapwood top` reads them, and a source that hands them out one after the other."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from sapwood_contract.curve import Curve, CurvePoint
from sapwood_contract.http import EngineLoad, LoadSnapshot, RequestView
from sapwood_tools.admin_client import Unanswered
from sapwood_tools.top.app import TopApp
from sapwood_tools.top.engines import EngineAddress
from sapwood_tools.top.figures import Figures
from sapwood_tools.top.samples import Cache, CacheNode, Sample
from sapwood_tools.top.source import GatewayAnswer, Poll

LOAD = LoadSnapshot(
    num_running=2,
    num_waiting=1,
    kv_capacity_tokens=24_576,
    kv_page_tokens=16,
    kv_active_tokens=2_048,
    kv_protected_tokens=4_096,
    kv_evictable_tokens=8_192,
    kv_free_tokens=10_240,
    radix_nodes=4,
    radix_locked_nodes=2,
    max_running=16,
)
REQUESTS = (
    RequestView(
        "chat-7f3a",
        "running",
        None,
        4.2,
        4.2,
        1_300,
        1_024,
        61,
        {"tokenize": 0.1, "queue": 0.4, "prefill": 0.7, "decode": 2.9, "detokenize": 0.1},
    ),
    RequestView("summarise \x1b[31m7", "running", None, 1.5, 1.5, 2_048, 0, 0, {"queue": 0.3, "prefill": 1.2}),
    RequestView("chat-81bc", "waiting", None, 0.9, 0.9, 512, None, 0, {"queue": 0.9}),
    RequestView(
        "chat-6e01", "ended", "stop", 12.0, 3.0, 1_100, 1_024, 40, {"queue": 0.1, "prefill": 0.4, "decode": 2.5}
    ),
    RequestView("chat-6dff", "ended", "abort", 75.0, 9.0, 900, 16, 120, {"prefill": 1.0, "decode": 8.0}),
    RequestView("chat-6d0a", "ended", "error", 130.0, 0.0, 30_000, None, 0, {"queue": 0.0}),
)


def node(serial: int, parent: int | None = None, *, tokens: int = 16, locks: int = 0, hits: int = 0) -> CacheNode:
    """One node of a tree."""
    return CacheNode(serial, parent, "revision main", tokens, locks, hits, serial)


NODES = (node(1, tokens=1_024, locks=2, hits=9), node(2, 1, tokens=256, locks=1), node(3, 1, tokens=64, hits=1))
CURVE = Curve(
    enabled=True,
    sample_rate=0.05,
    num_samples=5_210,
    capacity_tokens=24_576,
    points=(
        *(CurvePoint(6_144 * i, 0.85 * (1 - math.exp(-i / 6))) for i in range(1, 33)),
        CurvePoint(None, 0.85),
    ),
    working_set_tokens=40_960,
    regret_tokens=1_536,
)


def figures(seconds: float = 0.0) -> Figures:
    """What an engine has counted after so many seconds of an even load."""
    ended = 2 * seconds

    def buckets(*shares: float) -> tuple[tuple[float, float], ...]:
        bounds = (*(0.01 * 2**i for i in range(len(shares))), math.inf)
        return tuple((bound, share * ended) for bound, share in zip(bounds, (*shares, 1.0), strict=True))

    return Figures(
        prompt_tokens=500_000 + 1_280 * seconds,
        cached_tokens=300_000 + 960 * seconds,
        output_tokens=90_000 + 212 * seconds,
        requests=700 + ended,
        evicted_tokens=10 * seconds,
        preemptions=0,
        ttft=buckets(0.1, 0.4, 0.7, 0.9, 0.99),
        itl=buckets(0.95, 0.99, 1.0, 1.0, 1.0),
    )


def cache(*nodes: CacheNode, num_nodes: int | None = None, curve: Curve | None = None) -> Cache:
    """A listing of a tree; ``num_nodes`` above their number: a truncated one."""
    total = len(nodes) if num_nodes is None else num_nodes
    return Cache(total, total > len(nodes), nodes, curve)


def sample(at: float = 0.0, *nodes: CacheNode, **load: int) -> Sample:
    """All answers of a busy engine at ``at``, with these nodes in its tree."""
    snapshot = LoadSnapshot(**{name: load.get(name, getattr(LOAD, name)) for name in LOAD.__dataclass_fields__})
    return Sample(
        at=at,
        load=EngineLoad("smollm2-135m", "ready", snapshot),
        figures=figures(at),
        requests=REQUESTS,
        cache=cache(*nodes or NODES, curve=CURVE),
    )


@dataclass(slots=True)
class FakeSource:
    """Hands out ``polls`` one after the other, then none; keeps what it was told to do."""

    polls: Sequence[Poll]
    problem: str = ""
    """Why orders fail; empty: they do not."""
    aborted: list[tuple[str, str]] = field(default_factory=list)
    flushed: list[str] = field(default_factory=list)
    _num_asked: int = 0
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, *polls: Poll) -> None:
        """Have more to hand out."""
        self.polls = [*self.polls, *polls]
        self._more.set()

    async def ask(self) -> Poll:
        while self._num_asked == len(self.polls):
            self._more.clear()
            await self._more.wait()
        self._num_asked += 1
        return self.polls[self._num_asked - 1]

    async def abort(self, url: str, request_id: str) -> int:
        self._check()
        self.aborted.append((url, request_id))
        return 1

    async def flush(self, url: str) -> int:
        self._check()
        self.flushed.append(url)
        return 8_192

    def _check(self) -> None:
        if self.problem:
            raise Unanswered(self.problem)


def poll(*samples: Sample, gateway: GatewayAnswer | None = None) -> Poll:
    """What engines on ports 8001, 9001 … answered."""
    addresses = [EngineAddress(f"chat-{i}", f"http://127.0.0.1:{8001 + 1000 * i}") for i in range(len(samples))]
    return Poll(tuple(zip(addresses, samples, strict=True)), gateway)


async def polled(pilot: Pilot[None], num_polls: int) -> TopApp:
    """Return the app once it shows that many polls."""
    app = pilot.app
    assert isinstance(app, TopApp)
    async with asyncio.timeout(60):
        while app.num_polls < num_polls:
            await pilot.pause()
    await pilot.pause()
    return app


def text_of(app: TopApp, name: str) -> str:
    """Return what a part of the screen says."""
    return str(app.screen_stack[0].query_one(f"#{name}", Static).render())


def rows_of(app: TopApp, name: str) -> list[list[str]]:
    """Return the cells of a table."""
    table = app.screen_stack[0].query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]
