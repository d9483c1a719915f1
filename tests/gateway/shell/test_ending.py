"""The gateway does not go on without what it cannot do without."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from sapwood_gateway.shell.discovery.cluster_api import Answer, Listing, Source
from sapwood_gateway.shell.ending import Ending
from sapwood_gateway.shell.options import parse
from sapwood_gateway.shell.serve import Ports, run_gateway
from sapwood_gateway.shell.tenancy import Trust


class BrokenApi:
    """An API whose client has a fault."""

    def list(self, source: Source) -> Listing:
        raise RecursionError(source.path)

    def watch(self, source: Source, version: str) -> Iterator[Mapping[str, Any]]:
        raise AssertionError((source, version))

    def read(self, path: str) -> Answer:
        raise AssertionError(path)

    def close(self) -> None:
        pass


async def fail() -> None:
    raise RuntimeError("why")


async def end() -> None:
    pass


@pytest.mark.parametrize("work", [fail, end])
async def test_a_watched_task_that_ends_by_itself_ends_the_program_with_1(
    work: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ending = Ending()
    ending.watch(asyncio.create_task(work(), name="the work"))
    await ending.begun.wait()
    assert ending.exit_code == 1
    assert [vars(record)["task"] for record in caplog.records if record.levelname == "CRITICAL"] == ["the work"]


async def test_a_watched_task_that_is_cancelled_ends_nothing() -> None:
    ending = Ending()
    task = asyncio.create_task(asyncio.Event().wait())
    ending.watch(task)
    task.cancel()
    await asyncio.wait([task])
    assert not ending.begun.is_set()


async def test_a_gateway_that_follows_the_cluster_no_more_ends_with_1() -> None:
    ports = Ports(api=socket.create_server(("127.0.0.1", 0)), admin=socket.create_server(("127.0.0.1", 0)))
    async with asyncio.timeout(60):
        assert await run_gateway(parse([]), ports, BrokenApi(), Trust()) == 1
