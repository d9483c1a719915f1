"""Tokenizers as the gateway gets them from engines, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from support_gateway import nobody, serving

from sapwood_contract.http import ADMIN_TOKENIZER
from sapwood_gateway.core.reading_turns import ServedModel
from sapwood_gateway.core.routes import Replica, ServiceKey
from sapwood_gateway.shell.tokenizers import Tokenizers
from sapwood_gateway.shell.upstream import new_session

A, B = (ServedModel(ServiceKey("team", name), "r") for name in "ab")
DEADLINE_SECONDS = 20.0
NOBODY = nobody()


@dataclass
class Engine:
    """Hands out ``bundles``, one after the other, and the last one again and again."""

    bundles: list[bytes | int]
    replica: Replica = NOBODY
    shown: list[str] = field(default_factory=list)
    asked: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    async def show(self, request: web.Request) -> web.Response:
        self.shown.append(request.headers["X-Who"])
        self.asked.put_nowait(None)
        bundle = self.bundles.pop(0) if len(self.bundles) > 1 else self.bundles[0]
        return web.Response(status=bundle) if isinstance(bundle, int) else web.Response(body=bundle)


@asynccontextmanager
async def engine(*bundles: bytes | int) -> AsyncIterator[Engine]:
    made = Engine(list(bundles))
    app = web.Application()
    app.router.add_get(ADMIN_TOKENIZER, made.show)
    async with serving(app) as url:
        made.replica = Replica(id=url, name=url, url=url, admin_url=url)
        yield made


@dataclass
class Keeper:
    """Takes any bundle that is its revision's name."""

    loaded: dict[ServedModel, bytes] = field(default_factory=dict)
    resting: set[ServedModel] = field(default_factory=set)

    def has(self, model: ServedModel) -> bool:
        return model in self.loaded

    def rests(self, model: ServedModel) -> bool:
        return model in self.resting

    def keep(self, models: Collection[ServedModel]) -> None:
        self.loaded = {model: bundle for model, bundle in self.loaded.items() if model in models}

    async def load(self, model: ServedModel, bundle: bytes) -> None:
        if bundle != model.revision.encode():
            raise ValueError
        self.loaded[model] = bundle


@asynccontextmanager
async def tokenizers(keeper: Keeper) -> AsyncIterator[Tokenizers]:
    async with new_session(1.0) as session:
        made = Tokenizers(session, keeper, shown=lambda id_: {"X-Who": f"gateway of {id_}"}, retry_seconds=0.0)
        yield made
        await made.close()


async def until_loaded(
    made: Tokenizers, keeper: Keeper, wanted: Mapping[ServedModel, Replica], *models: ServedModel
) -> None:
    """Want again and again, as the load poller does, until ``models`` are there."""
    await until(lambda: all(keeper.has(model) for model in models), lambda: made.want(wanted))


async def until(holds: Callable[[], bool], want: Callable[[], None]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not holds():
            want()
            await asyncio.sleep(0)


async def test_a_tokenizer_is_fetched_once() -> None:
    keeper = Keeper()
    async with engine(b"r") as a, tokenizers(keeper) as made:
        await until_loaded(made, keeper, {A: a.replica}, A)
        made.want({A: a.replica})
        assert a.asked.qsize() == 1
        assert a.shown == [f"gateway of {a.replica.id}"]


async def test_each_service_gets_it_from_an_engine_of_its_own() -> None:
    keeper = Keeper()
    async with engine(b"r") as a, engine(b"poison", b"r") as b, tokenizers(keeper) as made:
        await until_loaded(made, keeper, {A: a.replica, B: b.replica}, A, B)
        assert (a.asked.qsize(), b.asked.qsize()) == (1, 2)


@pytest.mark.parametrize("first", [404, 302, b"other", b"\xff"], ids=["status", "elsewhere", "revision", "bytes"])
async def test_an_engine_that_hands_out_none_is_asked_again(first: bytes | int) -> None:
    keeper = Keeper()
    async with engine(first, b"r") as a, tokenizers(keeper) as made:
        await until_loaded(made, keeper, {A: a.replica}, A)
        assert a.asked.qsize() == 2


async def test_a_model_whose_engine_is_away_keeps_no_other_from_being_read() -> None:
    keeper = Keeper()
    async with engine(b"r") as b, tokenizers(keeper) as made:
        await until_loaded(made, keeper, {A: NOBODY, B: b.replica}, B)


async def test_nothing_is_fetched_for_a_service_that_rests() -> None:
    keeper = Keeper(resting={A})
    async with engine(b"r") as a, engine(b"r") as b, tokenizers(keeper) as made:
        await until_loaded(made, keeper, {A: a.replica, B: b.replica}, B)
        assert a.asked.empty()


async def test_a_model_that_nobody_serves_any_more_is_forgotten_even_on_its_way() -> None:
    keeper = Keeper()
    async with engine(b"r") as a, tokenizers(keeper) as made:
        await until_loaded(made, keeper, {A: a.replica}, A)
        made.want({})
        assert not keeper.has(A)
        made.want({B: a.replica})
        made.want({})
        await until_loaded(made, keeper, {A: a.replica}, A)
        assert not keeper.has(B)
