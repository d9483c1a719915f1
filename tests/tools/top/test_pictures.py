"""What the screen looks like: compared with pictures that are kept beside this file.

After a change that is meant: ``pytest tests/tools/top/test_pictures.py --snapshot-update``, and look at them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from support_top import LOAD, NODES, REQUESTS, FakeSource, node, poll, polled, sample
from textual.app import App
from textual.pilot import Pilot

from sapwood_contract.http import EngineLoad
from sapwood_tools.top.app import TopApp
from sapwood_tools.top.gateway_figures import GatewayFigures
from sapwood_tools.top.samples import CacheNode, Sample
from sapwood_tools.top.source import GatewayAnswer, Poll

SIZE = (120, 36)


class SnapCompare(Protocol):
    """The fixture of pytest-textual-snapshot."""

    def __call__(
        self, app: App[None], *, terminal_size: tuple[int, int], run_before: Callable[[Pilot[None]], object]
    ) -> bool: ...


@pytest.fixture(autouse=True)
def _a_terminal_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_COLOR_SYSTEM"):
        monkeypatch.delenv(name, raising=False)


def looks_as_before(snap_compare: SnapCompare, polls: list[Poll], *keys: str) -> bool:
    async def wait_and_press(pilot: Pilot[None]) -> None:
        await polled(pilot, len(polls))
        await pilot.press(*keys)
        await pilot.pause()

    app = TopApp(FakeSource(polls), interval_seconds=0)
    return snap_compare(app, terminal_size=SIZE, run_before=wait_and_press)


def watched() -> list[Poll]:
    """A prefix appears in use while requests run, is let go, and is evicted."""
    return [
        poll(sample(0.0)),
        poll(sample(1.0, *NODES, node(4, 1, tokens=512, locks=1))),
        poll(sample(4.0, *NODES, node(4, 1, tokens=512))),
        poll(sample(6.0)),
    ]


def test_a_busy_engine(snap_compare: SnapCompare) -> None:
    assert looks_as_before(snap_compare, watched())


def test_a_prefix_that_has_just_appeared_and_is_in_use(snap_compare: SnapCompare) -> None:
    assert looks_as_before(snap_compare, watched()[:2])


def test_a_question_before_an_abort(snap_compare: SnapCompare) -> None:
    assert looks_as_before(snap_compare, watched()[:1], "a")


def test_an_engine_that_went(snap_compare: SnapCompare) -> None:
    polls = [poll(sample(0.0)), poll(Sample(1.0, problem="does not answer: nobody is there"))]
    assert looks_as_before(snap_compare, polls)


def test_two_engines_and_a_gateway(snap_compare: SnapCompare) -> None:
    def both(at: float, *nodes: CacheNode) -> Poll:
        draining = EngineLoad("smollm2-135m", "draining", replace(LOAD, num_running=1, num_waiting=0))
        other = replace(sample(at, node(40, tokens=48)), load=draining, requests=REQUESTS[3:])
        routed = (("prefix", 8.0 * at), ("least_load", 2.0 * at))
        figures = GatewayFigures(3, 0, (("ready", 1), ("draining", 1)), routed)
        return poll(sample(at, *nodes), other, gateway=GatewayAnswer("http://127.0.0.1:8081", at, figures))

    used = node(4, 1, tokens=512, locks=1)
    polls = [both(0.0, *NODES), both(2.0, *NODES, used), both(5.0, *NODES[:2], used), both(6.0, *NODES[:2], used)]
    assert looks_as_before(snap_compare, polls)


def test_the_picture_in_the_documents_is_the_one_that_is_tested_here() -> None:
    kept = Path(__file__).parent / "__snapshots__" / "test_pictures" / "test_two_engines_and_a_gateway.raw"
    shown = Path("docs/images/top.svg")
    assert shown.read_text(encoding="utf-8") == kept.read_text(encoding="utf-8"), f"copy {kept} to {shown}"


def test_the_help(snap_compare: SnapCompare) -> None:
    assert looks_as_before(snap_compare, watched()[:1], "question_mark")
