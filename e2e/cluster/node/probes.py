"""Probes: what a streak of answers means (pure), and how one is asked for."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

Verdict = Literal["undecided", "passed", "failed"]
Kind = Literal["startupProbe", "readinessProbe", "livenessProbe"]


@dataclass(frozen=True, slots=True)
class Probe:
    """When a container is asked, and how often it must answer alike; times in seconds."""

    action: Mapping[str, Any]
    initial_delay_seconds: float
    period_seconds: float
    timeout_seconds: float
    success_threshold: int
    failure_threshold: int


@dataclass(frozen=True, slots=True)
class NoProbe:
    """The container has none of that kind: it counts as passed."""


def probe_of(container: Mapping[str, Any], kind: Kind) -> Probe | NoProbe:
    """Return one probe of a container, with the API's defaults."""
    if kind not in container:
        return NoProbe()
    given = container[kind]
    return Probe(
        action=given,
        initial_delay_seconds=given.get("initialDelaySeconds", 0),
        period_seconds=given.get("periodSeconds", 10),
        timeout_seconds=given.get("timeoutSeconds", 1),
        success_threshold=given.get("successThreshold", 1),
        failure_threshold=given.get("failureThreshold", 3),
    )


@dataclass(frozen=True, slots=True)
class Streak:
    """How many of the latest answers were alike, and which."""

    answer: bool = False
    length: int = 0

    def then(self, answer: bool) -> Streak:
        return Streak(answer, self.length + 1 if answer == self.answer else 1)


def judge(probe: Probe, streak: Streak) -> Verdict:
    """Return what the streak says; ``undecided`` leaves things as they are."""
    if streak.answer:
        return "passed" if streak.length >= probe.success_threshold else "undecided"
    return "failed" if streak.length >= probe.failure_threshold else "undecided"


@dataclass(frozen=True, slots=True)
class Failure:
    """An action did not succeed; ``message`` is what an Event says."""

    message: str


@dataclass(frozen=True, slots=True)
class Success:
    """An action succeeded."""


Answer = Success | Failure
Execute = Callable[[Sequence[str]], Awaitable[int]]
"""Runs a command inside the container and returns its exit code."""


async def watch(probe: Probe, ask: Callable[[], Awaitable[Answer]], tell: Callable[[Verdict, Answer], None]) -> None:
    """Ask for ever, and tell each verdict with the answer that led to it."""
    await asyncio.sleep(probe.initial_delay_seconds)
    streak = Streak()
    while True:
        answer = await ask()
        streak = streak.then(isinstance(answer, Success))
        tell(judge(probe, streak), answer)
        await asyncio.sleep(probe.period_seconds)


async def act(
    action: Mapping[str, Any], container: Mapping[str, Any], address: str, execute: Execute, timeout_seconds: float
) -> Answer:
    """Do what a probe or a lifecycle hook says: ``httpGet``, ``tcpSocket``, ``exec`` or ``sleep``."""
    try:
        async with asyncio.timeout(timeout_seconds):
            if "exec" in action:
                code = await execute(action["exec"]["command"])
                return Success() if code == 0 else Failure(f"command exited with {code}")
            if "sleep" in action:
                await asyncio.sleep(action["sleep"]["seconds"])
                return Success()
            if "tcpSocket" in action:
                return await _connect(
                    action["tcpSocket"].get("host") or address, port_of(container, action["tcpSocket"])
                )
            return await _get(action["httpGet"], container, address)
    except TimeoutError:
        return Failure(f"no answer within {timeout_seconds:g} s")


async def _connect(host: str, port: int) -> Answer:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        return Failure(f"dial tcp {host}:{port}: {error.strerror or error}")
    writer.close()
    return Success()


async def _get(action: Mapping[str, Any], container: Mapping[str, Any], address: str) -> Answer:
    scheme = action.get("scheme", "HTTP").lower()
    url = f"{scheme}://{action.get('host') or address}:{port_of(container, action)}{action.get('path', '/')}"
    headers = {header["name"]: header["value"] for header in action.get("httpHeaders", [])}
    context = ssl._create_unverified_context() if scheme == "https" else True
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(url, allow_redirects=False, ssl=context) as answer,
        ):
            status = answer.status
    except (aiohttp.ClientError, OSError) as error:
        return Failure(f"Get {url!r}: {error}")
    return Success() if 200 <= status < 400 else Failure(f"HTTP probe failed with statuscode: {status}")


def port_of(container: Mapping[str, Any], action: Mapping[str, Any]) -> int:
    """Return an action's port, which may be the name of one of the container's; 0, where nobody listens, if it has
    no such name."""
    port = action["port"]
    if isinstance(port, int):
        return port
    named = (one["containerPort"] for one in container.get("ports", []) if one.get("name") == port)
    return int(next(named, 0))
