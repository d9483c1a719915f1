"""The public HTTP API of one engine, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from sapwood_console.paths import About
from sapwood_engine.api import chat, completions, console, health, models, tokens
from sapwood_engine.api.access import Keys, api_class
from sapwood_engine.api.edge import Edge
from sapwood_engine.api.engine_port import Engine
from sapwood_engine.api.errors import install_error_handlers
from sapwood_engine.api.strict_body import DEFAULT_MAX_BODY_BYTES
from sapwood_engine.api.traced import NO_TELEMETRY, Traced

if TYPE_CHECKING:  # OpenTelemetry's SDK is loaded where traces are kept
    from sapwood_engine.service.call_trace import CallTraces


def build_app(
    engine: Engine,
    *,
    api_keys: frozenset[str] = frozenset(),
    admin_keys: frozenset[str] = frozenset(),
    credentials: frozenset[str] = frozenset(),
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    traces: CallTraces | None = None,
    has_console: bool = False,
) -> FastAPI:
    """Return the OpenAI API of ``engine``.

    ``api_keys``: any of them lets a request in, and so does any of the gateway's ``credentials``; neither means no
    authentication. Probes and metrics need no key.
    ``max_body_bytes``: a larger body is refused with 413. ``traces``: None keeps none.
    ``has_console``: serve the page at ``/ui``; its data ask for any of ``admin_keys``, and are closed where there are
    none but other keys.
    """
    app = FastAPI(
        title="Sapwood",
        summary="An OpenAI-compatible API over a radix prefix cache",
        docs_url=None,  # both pages load their scripts from elsewhere; /openapi.json is here
        redoc_url=None,
        redirect_slashes=False,
        telemetry=NO_TELEMETRY,
    )
    app.state.engine = engine
    app.state.max_body_bytes = max_body_bytes
    for module in (chat, completions, models, tokens, health):
        app.include_router(module.router)
    keys = Keys(users=api_keys, admins=admin_keys, credentials=credentials)
    if has_console:
        app.state.about = About(
            program="engine",
            data="key" if admin_keys else "closed" if api_keys or credentials else "open",
            asks_api_key=bool(api_keys or credentials),
            shows_text=bool(admin_keys),
        )
        app.state.knows_gateway, app.state.asks_admin_key = bool(credentials), bool(admin_keys)
        app.include_router(console.files)
        app.include_router(console.data)
    install_error_handlers(app)
    app.add_middleware(Edge, class_of=api_class, keys=keys, ended=engine.count_call)
    app.add_middleware(Traced, traces=traces)
    return app
