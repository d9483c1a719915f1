"""The admin API, on a port of its own: for the operator, the gateway and a person at a terminal.

It can end everybody's requests: give it keys, bind it to localhost or keep it inside the cluster.
A web page in a browser on the same machine may not change anything.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Query, Request, Response
from pydantic import Field

from sapwood_contract.http import (
    ADMIN_ABORT,
    ADMIN_BLOCKS,
    ADMIN_CACHE,
    ADMIN_DRAIN,
    ADMIN_FLUSH,
    ADMIN_LOAD,
    ADMIN_REQUESTS,
    ADMIN_TOKENIZER,
    MAX_CACHE_NODES,
    MAX_RECENT_REQUESTS,
    MAX_TOKENIZER_BYTES,
    EngineLoad,
    RequestList,
)
from sapwood_engine.api import health, prefixes
from sapwood_engine.api.access import Keys, admin_class
from sapwood_engine.api.cache_text import TextClosed, tree_with_text
from sapwood_engine.api.documented import answered_with, answered_with_bytes
from sapwood_engine.api.edge import Edge
from sapwood_engine.api.engine_port import Engine
from sapwood_engine.api.errors import install_error_handlers, json_response
from sapwood_engine.api.generation import ready_capacity
from sapwood_engine.api.strict_body import StrictRoute
from sapwood_engine.api.traced import NO_TELEMETRY
from sapwood_engine.errors import RequestError
from sapwood_text.fields import Fields, Key, Salt

_MAX_ADMIN_BODY_BYTES = 4 * 2**20
"""`MAX_HOT_TOKENS` token ids of seven digits, and what stands between them."""
_MSGPACK = "application/vnd.msgpack"

router = APIRouter(route_class=StrictRoute)


class DrainRequest(Fields):
    """Body of ``POST /admin/drain``."""

    deadline_seconds: float | None = Field(None, ge=0, le=86_400, description="As --drain-seconds by default.")


class FlushRequest(Fields):
    """Body of ``POST /admin/flush``: without a field everything goes, with one or more a single namespace.

    It is the namespace of requests that named exactly these; a field that is null or left out beside another stands
    for requests without it.
    """

    adapter: Key | None = None
    extra_key: Key | None = None
    cache_salt: Salt = None
    tenant: Annotated[str | None, Field(min_length=1, description="As the gateway names it.")] = None


class AbortRequest(Fields):
    """Body of ``POST /admin/abort``."""

    request_id: str = Field(min_length=1, description="The x-request-id of the call to end.")


class NothingPublished(RequestError):
    """The engine keeps no log of blocks."""

    status = 404
    code = "not_published"

    def __init__(self) -> None:
        super().__init__("This engine publishes no cache events: start it with --kv-events-port.")


class TokenizerTooLarge(RequestError):
    """The engine serves with a tokenizer that it does not hand out."""

    status = 404
    code = "tokenizer_too_large"

    def __init__(self) -> None:
        super().__init__(f"This model's tokenizer takes more than the {MAX_TOKENIZER_BYTES} bytes that are handed out.")


@dataclass(frozen=True, slots=True)
class Aborted:
    num_aborted: int
    """Running choices that were told to stop."""


@router.get(ADMIN_LOAD, summary="State and load", responses=answered_with(EngineLoad))
async def show_load(request: Request) -> Response:
    """Return the state and the latest load snapshot."""
    return json_response(_load_of(request))


@router.get(ADMIN_CACHE, summary="The radix tree", responses=answered_with(dict[str, Any]))
async def show_cache(
    request: Request, max_nodes: Annotated[int, Query(ge=0, le=MAX_CACHE_NODES)] = 1_000, text: bool = False
) -> Response:
    """Return at most ``max_nodes`` nodes of the live radix tree.

    With ``text`` also what their tokens say: prompts, for holders of an admin key; 403 where none is configured.
    """
    engine: Engine = request.app.state.engine
    if text and not request.app.state.asks_admin_key:
        raise TextClosed
    ready_capacity(engine)
    if text:
        return json_response(await tree_with_text(engine, max_nodes=max_nodes))
    return json_response(await engine.admin("cache", max_nodes=max_nodes))


@router.get(ADMIN_BLOCKS, summary="All cached blocks", response_class=Response, responses=answered_with_bytes(_MSGPACK))
async def show_blocks(request: Request) -> Response:
    """Return all cached blocks in msgpack: a batch of events, with the sequence of the last published one behind it.

    404 where the engine publishes no events.
    """
    engine: Engine = request.app.state.engine
    ready_capacity(engine)
    answer = await engine.admin("blocks")
    if "batch" not in answer:
        raise NothingPublished
    return Response(answer["batch"], media_type=_MSGPACK)


@router.get(
    ADMIN_TOKENIZER,
    summary="The tokenizer and its chat template",
    response_class=Response,
    responses=answered_with_bytes(_MSGPACK) | {304: {"description": "The model is that of If-None-Match."}},
)
async def show_tokenizer(request: Request, if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """Return in msgpack what reads prompts as this engine does; the ETag is the model's revision."""
    engine: Engine = request.app.state.engine
    tokenizer = engine.tokenizer
    headers = {"etag": f'"{engine.model_revision}"'}
    if if_none_match == headers["etag"]:
        return Response(status_code=304, headers=headers)
    bundle = await asyncio.to_thread(tokenizer.bundle, engine.model_revision)
    if len(bundle) > MAX_TOKENIZER_BYTES:
        raise TokenizerTooLarge
    return Response(bundle, media_type=_MSGPACK, headers=headers)


@router.get(ADMIN_REQUESTS, summary="Calls of late", responses=answered_with(RequestList))
async def show_requests(
    request: Request, limit: Annotated[int, Query(ge=0, le=MAX_RECENT_REQUESTS)] = MAX_RECENT_REQUESTS
) -> Response:
    """Return the calls that wait or run, the oldest first, then the ``limit`` that ended last, the latest first.

    Ids, counts and times; nothing of what was asked or answered.
    """
    engine: Engine = request.app.state.engine
    return json_response(engine.requests(limit))


@router.post(ADMIN_FLUSH, summary="Empty the prefix cache", responses=answered_with(dict[str, Any]))
async def flush_cache(request: Request, body: FlushRequest | None = None) -> Response:
    """Drop every cached prefix, or those of one namespace, but for what running requests use; answer with how many
    tokens went.
    """
    engine: Engine = request.app.state.engine
    ready_capacity(engine)
    if body is None or not body.model_fields_set:
        return json_response(await engine.admin("flush"))
    namespace = {
        "adapter_id": body.adapter,
        "extra_key": body.extra_key,
        "tenant_salt": body.cache_salt,
        "tenant": body.tenant,
    }
    return json_response(await engine.admin("flush", **namespace))


@router.post(ADMIN_DRAIN, summary="Take no new requests", responses=answered_with(EngineLoad))
async def drain(request: Request, body: DrainRequest | None = None) -> Response:
    """Refuse new requests from now on and answer when the running ones have ended, or at the deadline."""
    engine: Engine = request.app.state.engine
    asked = body.deadline_seconds if body is not None else None
    # A caller that gives up waiting has still asked for the drain.
    await asyncio.shield(asyncio.ensure_future(engine.drain(asked)))
    return json_response(_load_of(request))


@router.post(ADMIN_ABORT, summary="End one call", responses=answered_with(Aborted))
async def abort(body: AbortRequest, request: Request) -> Response:
    """End every running choice of the call with exactly this request id; an unknown id is no fault."""
    engine: Engine = request.app.state.engine
    return json_response(Aborted(await engine.abort(body.request_id)))


def _load_of(request: Request) -> EngineLoad:
    engine: Engine = request.app.state.engine
    return EngineLoad(
        engine.model_name,
        engine.state,
        engine.load,
        engine.model_revision,
        engine.kv_events,
        knows_gateway=request.app.state.knows_gateway,
    )


def build_admin_app(
    engine: Engine, *, admin_keys: frozenset[str] = frozenset(), credentials: frozenset[str] = frozenset()
) -> FastAPI:
    """Return the admin API of ``engine``.

    ``admin_keys``: any of them lets a request in. Any of the gateway's ``credentials`` does too where load, blocks, the
    tokenizer or prefixes are asked for, and where there are credentials alone, nobody gets at the rest. Neither means
    no authentication. Probes and metrics need no key.
    """
    app = FastAPI(title="Sapwood admin API", docs_url=None, redoc_url=None, telemetry=NO_TELEMETRY)
    app.state.engine = engine
    app.state.max_body_bytes = _MAX_ADMIN_BODY_BYTES
    app.state.knows_gateway = bool(credentials)
    app.state.asks_admin_key = bool(admin_keys)
    app.include_router(router)
    app.include_router(prefixes.router)
    app.include_router(health.router)
    install_error_handlers(app)
    keys = Keys(admins=admin_keys, credentials=credentials)
    app.add_middleware(Edge, class_of=admin_class, keys=keys, refuse_web_pages=True)
    return app
