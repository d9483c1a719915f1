"""What moves of a cache from engine to engine: which prefixes are worth most here, and which to compute of another's.

Token ids are prompts. Who asks for them holds the gateway's credential or an admin key; where neither is configured,
nothing tells a caller from a web page that let its own name point here, so the engine must be called by its address.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sapwood_console.origin import origin_of
from sapwood_contract.http import (
    ADMIN_HOT_PREFIXES,
    ADMIN_PREFIXES,
    ADMIN_WARM,
    MAX_HOT_TOKENS,
    CachedNodes,
    HotPrefixes,
    WarmProgress,
)
from sapwood_engine.api.documented import answered_with
from sapwood_engine.api.engine_port import Engine
from sapwood_engine.api.errors import json_response
from sapwood_engine.api.generation import check_ids, ready_capacity
from sapwood_engine.api.strict_body import StrictRoute, beside_streams
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.warming import WarmPrefix
from sapwood_engine.errors import InvalidField, RequestError, quote
from sapwood_text.fields import Fields, Key, Salt

_MAX_PREFIXES = 4_096
_FEW_PREFIXES = 256
_MAX_TENANT_CHARACTERS = 1_024

router = APIRouter(route_class=StrictRoute)


_Part = Annotated[
    tuple[Annotated[int, Field(strict=True, ge=1)], Annotated[float, Field(strict=True, ge=0)]],
    Field(strict=False, description="JSON has no tuples: an array of two."),
]


class WarmField(Fields):
    """One of the prefixes of a `WarmRequest`; its namespace is that of requests that name exactly these."""

    token_ids: list[int] = Field(min_length=1, max_length=MAX_HOT_TOKENS)
    worth_tokens: float = Field(ge=0, description="What it should save within five minutes, in tokens of prefill.")
    parts: list[_Part] = Field(
        [],
        max_length=MAX_HOT_TOKENS,
        description="From its beginning on: so many tokens, and how often each should be used within five minutes;"
        " `worth_tokens` counts where there are none.",
    )
    adapter: None = Field(None, description="None is served yet.")
    extra_key: Key | None = None
    cache_salt: Salt = None
    tenant: str | None = Field(None, min_length=1, max_length=_MAX_TENANT_CHARACTERS)


class WarmRequest(Fields):
    """Body of ``POST /admin/warm``: what another engine answered to ``GET /admin/prefixes/hot``, or a part of it."""

    model_revision: str = Field(min_length=1)
    prefixes: list[WarmField] = Field(max_length=_MAX_PREFIXES)
    is_last: bool = Field(True, description="Nothing more will come, so an engine that waits may get ready after it.")


class OtherRevision(RequestError):
    """Token ids of another model, or of another checkpoint of it."""

    status = 409
    code = "other_model_revision"
    param = "model_revision"

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(
            f"model_revision: {quote(asked)} is not served here, but {quote(served)}: the same token ids mean something"
            " else. Send only what engines of the same revision hold."
        )


class StrangeName(RequestError):
    """A page may have let its name point here."""

    status = 403
    code = "origin_not_allowed"

    def __init__(self) -> None:
        super().__init__(
            "This engine was started without keys and tells what prompts begin with to no web page: ask for it by the"
            " engine's address, or start it with --admin-key-file."
        )


@router.get(ADMIN_PREFIXES, summary="What is worth keeping, without tokens", responses=answered_with(CachedNodes))
async def show_prefixes(request: Request) -> Response:
    """Return the nodes of the radix tree that should save most within five minutes, by the names of their pages."""
    engine: Engine = request.app.state.engine
    ready_capacity(engine)
    return json_response(await engine.prefixes.nodes())


@router.get(ADMIN_HOT_PREFIXES, summary="What is worth keeping, as tokens", responses=answered_with(HotPrefixes))
async def show_hot_prefixes(
    request: Request,
    limit: Annotated[int, Query(ge=0, le=_MAX_PREFIXES)] = _FEW_PREFIXES,
    max_tokens: Annotated[int, Query(ge=0, le=MAX_HOT_TOKENS)] = MAX_HOT_TOKENS,
) -> Response:
    """Return the beginnings of prompts that should save most within five minutes: at most ``limit``, of at most
    ``max_tokens`` tokens together, in whole pages.
    """
    engine: Engine = request.app.state.engine
    asks_key = request.app.state.asks_admin_key or request.app.state.knows_gateway
    if origin_of(request.headers, asks_key=asks_key) != "own":
        raise StrangeName
    ready_capacity(engine)
    return json_response(await engine.prefixes.hot(max_prefixes=limit, max_tokens=max_tokens))


@router.get(ADMIN_WARM, summary="How far that is computed", responses=answered_with(WarmProgress))
async def show_warming(request: Request) -> Response:
    """Return how far the engine is with what it was told to compute."""
    engine: Engine = request.app.state.engine
    return json_response(engine.prefixes.progress())


@router.post(ADMIN_WARM, summary="Compute prefixes of another engine", responses=answered_with(WarmProgress))
async def warm(body: WarmRequest, request: Request) -> Response:
    """Compute ``prefixes`` into the cache, the first one first, while nobody has requests; answer at once.

    They give way to any request, and take free room, or that of what should save less. What had no turn within five
    minutes is given up.
    """
    engine: Engine = request.app.state.engine
    capacity = ready_capacity(engine)
    if body.model_revision != engine.model_revision:
        raise OtherRevision(body.model_revision, engine.model_revision)
    num_tokens = sum(len(prefix.token_ids) for prefix in body.prefixes)
    if num_tokens > MAX_HOT_TOKENS:
        fix = f"a call takes at most {MAX_HOT_TOKENS}: send the others in a call of their own"
        raise InvalidField("prefixes", f"{num_tokens} token ids", fix)
    prefixes = await beside_streams(request, lambda: _read(body, capacity.vocab_size, engine.model_revision))
    return json_response(await engine.prefixes.warm(prefixes, is_last=body.is_last))


def _read(body: WarmRequest, vocab_size: int, model_revision: str) -> list[WarmPrefix]:
    prefixes = []
    for index, prefix in enumerate(body.prefixes):
        check_ids(prefix.token_ids, vocab_size, f"prefixes.{index}.token_ids")
        namespace = Namespace(
            model_revision, extra_key=prefix.extra_key, tenant_salt=prefix.cache_salt, tenant=prefix.tenant
        )
        prefixes.append(WarmPrefix(namespace, tuple(prefix.token_ids), prefix.worth_tokens, tuple(prefix.parts)))
    return prefixes
