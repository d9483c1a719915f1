"""What a streak of answers means, and how an action is done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.node.probes import (
    Answer,
    Failure,
    NoProbe,
    Probe,
    Streak,
    Success,
    Verdict,
    act,
    judge,
    port_of,
    probe_of,
    watch,
)

CONTAINER = {"name": "main", "ports": [{"name": "admin", "containerPort": 8001}]}


def test_a_probe_has_the_defaults_of_the_api() -> None:
    given = {"readinessProbe": {"httpGet": {"path": "/readyz", "port": "admin"}}}
    found = probe_of(given, "readinessProbe")
    assert isinstance(found, Probe)
    seconds = found.initial_delay_seconds, found.period_seconds, found.timeout_seconds
    assert (*seconds, found.success_threshold, found.failure_threshold) == (0, 10, 1, 1, 3)
    assert probe_of(given, "livenessProbe") == NoProbe()


@pytest.mark.parametrize(
    ("answers", "verdicts"),
    [
        ("+", ["undecided"]),
        ("++", ["undecided", "passed"]),
        ("+-++", ["undecided", "undecided", "undecided", "passed"]),
        ("---", ["undecided", "undecided", "failed"]),
        ("--+---", ["undecided", "undecided", "undecided", "undecided", "undecided", "failed"]),
        ("---+", ["undecided", "undecided", "failed", "undecided"]),
        ("++++", ["undecided", "passed", "passed", "passed"]),
    ],
)
def test_thresholds_count_equal_answers_in_a_row(answers: str, verdicts: list[Verdict]) -> None:
    probe = Probe({}, 0, 1, 1, success_threshold=2, failure_threshold=3)
    streak, found = Streak(), []
    for answer in answers:
        streak = streak.then(answer == "+")
        found.append(judge(probe, streak))
    assert found == verdicts


async def test_every_answer_is_told_with_its_verdict() -> None:
    answers: list[Answer] = [Failure("not yet"), Success()]
    told: list[tuple[Verdict, Answer]] = []
    done = asyncio.Event()

    async def ask() -> Answer:
        return answers[len(told)]

    def tell(verdict: Verdict, answer: Answer) -> None:
        told.append((verdict, answer))
        if len(told) == len(answers):
            done.set()

    probe = Probe({}, 0, period_seconds=0, timeout_seconds=1, success_threshold=1, failure_threshold=2)
    watching = asyncio.create_task(watch(probe, ask, tell))
    await done.wait()
    watching.cancel()
    assert told == [("undecided", Failure("not yet")), ("passed", Success())]


def test_a_port_may_be_named() -> None:
    assert port_of(CONTAINER, {"port": "admin"}) == 8001
    assert port_of(CONTAINER, {"port": 80}) == 80
    assert port_of(CONTAINER, {"port": "nobody"}) == 0


async def execute_nothing(argv: Sequence[str]) -> int:
    raise AssertionError(argv)


async def serve(status: str) -> tuple[asyncio.Server, int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(("status", "succeeds"), [("200 OK", True), ("302 Found", True), ("503 Loading", False)])
async def test_an_http_probe_succeeds_below_four_hundred(status: str, succeeds: bool) -> None:
    server, port = await serve(status)
    async with server:
        answer = await act({"httpGet": {"path": "/", "port": port}}, CONTAINER, "127.0.0.1", execute_nothing, 5)
    assert isinstance(answer, Success) is succeeds


async def test_a_tcp_probe_tells_whether_somebody_listens() -> None:
    server, port = await serve("200 OK")
    action: dict[str, Any] = {"tcpSocket": {"port": port}}
    async with server:
        assert await act(action, CONTAINER, "127.0.0.1", execute_nothing, 5) == Success()
    answer = await act(action, CONTAINER, "127.0.0.1", execute_nothing, 5)
    assert isinstance(answer, Failure)
    assert f"127.0.0.1:{port}" in answer.message


@pytest.mark.parametrize(("code", "answer"), [(0, Success()), (7, Failure("command exited with 7"))])
async def test_a_command_succeeds_with_exit_code_zero(code: int, answer: Answer) -> None:
    async def execute(argv: Sequence[str]) -> int:
        assert argv == ["check"]
        return code

    assert await act({"exec": {"command": ["check"]}}, CONTAINER, "", execute, 5) == answer


async def test_an_action_that_takes_too_long_has_failed() -> None:
    async def never(argv: Sequence[str]) -> int:
        await asyncio.Event().wait()
        return 0

    answer = await act({"exec": {"command": ["hang"]}}, CONTAINER, "", never, 0.01)
    assert answer == Failure("no answer within 0.01 s")
