"""The life of `sapwood local`: one loop that looks at files, lets the platform act, and shows it.

A first SIGTERM, SIGINT or SIGHUP lets every replica finish what it has, then the gateway; a second one ends all.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import aiohttp

from sapwood_operator.adapters.asking import client_session
from sapwood_operator.local.documents import Documents
from sapwood_operator.local.engines import AskedEngines
from sapwood_operator.local.figures import Figures, read_figures
from sapwood_operator.local.platform import Platform
from sapwood_operator.local.pod import LOOPBACK
from sapwood_operator.local.probes import is_ready, metrics_text
from sapwood_operator.local.reconcile import Engines, Told

_STEP_SECONDS = 0.2
_PROBE_SECONDS = 0.5
_FIGURES_SECONDS = 1.0
_FILES_SECONDS = 0.5
EXIT_SIGNAL = 128


class View(Protocol):
    """Where people see what happens."""

    def show(self, platform: Platform, figures: Figures, told: Sequence[Told], now: float) -> None:
        """Show the state of ``now`` (monotonic clock), and what has happened since the last call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Chores:
    """What is to be done now and then."""

    read_again: Callable[[], Documents | None]
    """Returns what the files say, where that is new and can be used."""
    bound_logs: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is learned of engines beside the steps."""

    figures: Figures
    engines: Engines


async def run(platform: Platform, chores: Chores, view: View) -> int:
    """Run until a signal says otherwise and everything has ended; return the exit code."""
    signals: list[int] = []
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, signals.append, number)
    try:
        async with aiohttp.ClientSession() as session, client_session() as once, asyncio.TaskGroup() as group:
            figures, engines = Figures(), _engines(once, platform)
            works = (_probe(session, platform), _measure(session, platform, figures), engines.run())
            asking = [group.create_task(each) for each in works]
            await _steps(platform, chores, view, Asked(figures, engines), signals)
            for task in asking:
                task.cancel()
    finally:
        platform.kill()
    return EXIT_SIGNAL + signals[-1] if len(signals) > 1 else 0


def _engines(session: aiohttp.ClientSession, platform: Platform) -> AskedEngines:
    return AskedEngines(
        session,
        platform.watched,
        gateway_admin_url=platform.gateway.admin_url,
        secret=platform.settings.secret,
        wake=platform.wake,
    )


async def _steps(platform: Platform, chores: Chores, view: View, asked: Asked, signals: Sequence[int]) -> None:
    files_due = 0.0
    while not platform.has_ended and len(signals) < 2:
        now = time.monotonic()
        platform.is_ending = bool(signals)
        if now >= files_due and not platform.is_ending:
            files_due = now + _FILES_SECONDS
            platform.documents = chores.read_again() or platform.documents
            chores.bound_logs()
        told = platform.step(now, datetime.now(UTC), asked.engines)
        view.show(platform, asked.figures, told, now)
        await asyncio.sleep(_STEP_SECONDS)


async def _probe(session: aiohttp.ClientSession, platform: Platform) -> None:
    """Ask every program whether it is ready, for ever."""
    while True:
        pods = [pod for pod in platform.kubelet.pods if pod.runs]
        urls = [*(_address(pod.ports.admin) for pod in pods), platform.gateway.admin_url]
        *answers, gateway_is_ready = await asyncio.gather(*(is_ready(session, url) for url in urls))
        for pod, answer in zip(pods, answers, strict=True):
            platform.kubelet.probed(pod, is_ready=answer)
        platform.gateway_is_ready = gateway_is_ready
        await asyncio.sleep(_PROBE_SECONDS)


async def _measure(session: aiohttp.ClientSession, platform: Platform, figures: Figures) -> None:
    """Ask every engine for its figures, for ever."""
    while True:
        pods = [pod for pod in platform.kubelet.pods if pod.is_ready]
        texts = await asyncio.gather(*(metrics_text(session, _address(pod.ports.admin)) for pod in pods))
        for pod, text in zip(pods, texts, strict=True):
            figures.take(pod.name, read_figures(text), time.monotonic())
        figures.keep({pod.name for pod in platform.kubelet.pods})
        await asyncio.sleep(_FIGURES_SECONDS)


def _address(port: int) -> str:
    return f"http://{LOOPBACK}:{port}"
