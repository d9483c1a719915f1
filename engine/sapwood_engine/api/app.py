"""The public HTTP API of one engine, put together."""

from __future__ import annotations

from fastapi import FastAPI

from sapwood_engine.api import chat, completions, health, models, tokens
from sapwood_engine.api.access import Keys, api_class
from sapwood_engine.api.edge import Edge
from sapwood_engine.api.engine_port import Engine
from sapwood_engine.api.errors import install_error_handlers
from sapwood_engine.api.strict_body import DEFAULT_MAX_BODY_BYTES


def build_app(
    engine: Engine,
    *,
    api_keys: frozenset[str] = frozenset(),
    credentials: frozenset[str] = frozenset(),
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
) -> FastAPI:
    """Return the OpenAI API of ``engine``.

    ``api_keys``: any of them lets a request in, and so does any of the gateway's ``credentials``; neither means no
    authentication. Probes and metrics need no key.
    ``max_body_bytes``: a larger body is refused with 413.
    """
    app = FastAPI(
        title="Sapwood",
        summary="An OpenAI-compatible API over a radix prefix cache",
        docs_url=None,  # both pages load their scripts from elsewhere; /openapi.json is here
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.engine = engine
    app.state.max_body_bytes = max_body_bytes
    for module in (chat, completions, models, tokens, health):
        app.include_router(module.router)
    install_error_handlers(app)
    app.add_middleware(Edge, class_of=api_class, keys=Keys(users=api_keys, credentials=credentials))
    return app
