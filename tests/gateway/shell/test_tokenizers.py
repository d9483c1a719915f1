"""Tokenizers as the gateway gets them from engines, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from support_gateway import nobody, serving

from sapwood_contract.http import ADMIN_TOKENIZER
from sapwood_gateway.shell.tokenizers import Tokenizers
from sapwood_gateway.shell.upstream import new_session

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "a text"}
DEADLINE_SECONDS = 20.0


@dataclass
class Reader:
    """Knows three tokens; its bundle is its revision's name."""

    model_revision: str

    def read(self, _path: str, body: Any) -> object:
        return (1, 2, 3) if body == BODY else "unreadable"


def build(bundle: bytes) -> Reader:
    return Reader(bundle.decode())


@dataclass
class Engine:
    """Hands out ``bundles``, one after the other, and the last one again and again."""

    bundles: list[bytes | int]
    url: str = ""
    asked: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    async def show(self, _: web.Request) -> web.Response:
        self.asked.put_nowait(None)
        bundle = self.bundles.pop(0) if len(self.bundles) > 1 else self.bundles[0]
        return web.Response(status=bundle) if isinstance(bundle, int) else web.Response(body=bundle)


@asynccontextmanager
async def engine(*bundles: bytes | int) -> AsyncIterator[Engine]:
    made = Engine(list(bundles))
    app = web.Application()
    app.router.add_get(ADMIN_TOKENIZER, made.show)
    async with serving(app) as made.url:
        yield made


@asynccontextmanager
async def tokenizers(*, fetch: bool = True) -> AsyncIterator[Tokenizers]:
    async with new_session(1.0) as session:
        made = Tokenizers(session, build if fetch else None, retry_seconds=0.0)
        yield made
        await made.close()


async def until(holds: Callable[[], bool], want: Callable[[], None]) -> None:
    """Want again and again, as the load poller does."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not holds():
            want()
            await asyncio.sleep(0)


async def test_texts_are_read_once_the_tokenizer_is_there() -> None:
    async with engine(b"r") as a, tokenizers() as made:
        assert made.read("r", COMPLETIONS, BODY) is None
        await until(lambda: made.read("r", COMPLETIONS, BODY) == (1, 2, 3), lambda: made.want({"r": a.url}))
        assert made.read("r", COMPLETIONS, {"prompt": 5}) is None
        assert a.asked.qsize() == 1


async def test_until_it_is_there_and_where_none_is_fetched_token_ids_are_read() -> None:
    async with engine(b"r") as a, tokenizers(fetch=False) as made:
        made.want({"r": a.url})
        token_ids = made.read("r", COMPLETIONS, {"prompt": [7, 8]})
        assert token_ids is not None
        assert list(token_ids) == [7, 8]
        assert a.asked.empty()


@pytest.mark.parametrize("first", [404, 302, b"other", b"\xff"], ids=["status", "elsewhere", "revision", "bytes"])
async def test_an_engine_that_hands_out_none_is_asked_again(first: bytes | int) -> None:
    async with engine(first, b"r") as a, tokenizers() as made:
        await until(lambda: made.read("r", COMPLETIONS, BODY) == (1, 2, 3), lambda: made.want({"r": a.url}))
        assert a.asked.qsize() == 2


async def test_a_model_whose_engine_is_away_keeps_no_other_from_being_read() -> None:
    async with engine(b"r") as a, tokenizers() as made:
        models = {"away": nobody().admin_url, "r": a.url}
        await until(lambda: made.read("r", COMPLETIONS, BODY) == (1, 2, 3), lambda: made.want(models))


async def test_a_model_that_nobody_serves_any_more_is_forgotten() -> None:
    async with engine(b"r") as a, tokenizers() as made:
        await until(lambda: made.read("r", COMPLETIONS, BODY) == (1, 2, 3), lambda: made.want({"r": a.url}))
        made.want({})
        assert made.read("r", COMPLETIONS, BODY) is None
