"""``/livez``, ``/readyz``, ``/health`` and ``/metrics``: open to probes and scrapers, without a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from sapwood_contract.http import HEALTH, LIVEZ, METRICS, READYZ, EngineState
from sapwood_engine.api.engine_port import Engine
from sapwood_engine.api.errors import json_response

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Health:
    """What a probe reads."""

    state: EngineState


_READINESS: dict[int | str, dict[str, Any]] = {
    200: {"model": Health, "description": "Ready."},
    503: {"model": Health, "description": "Not ready."},
}


@router.get(LIVEZ, summary="Is the HTTP process alive?", responses={200: {"model": Health, "description": "Alive."}})
async def live(request: Request) -> Response:
    """Answer 200 in every state: restarting the process would not make a load go faster."""
    engine: Engine = request.app.state.engine
    return json_response(Health(engine.state))


@router.get(READYZ, summary="Does the engine take requests?", responses=_READINESS)
@router.get(HEALTH, summary="The same as /readyz, under the name that clients of vLLM know", responses=_READINESS)
async def ready(request: Request) -> Response:
    """Answer 200 when ready; 503 while loading, warming or draining."""
    engine: Engine = request.app.state.engine
    return json_response(Health(engine.state), status=200 if engine.state == "ready" else 503)


@router.get(
    METRICS,
    summary="Prometheus metrics",
    responses={
        200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}, "description": "As asked for."}
    },
)
async def metrics(request: Request) -> Response:
    """Return every series as OpenMetrics where the Accept header names it, else in Prometheus's text format."""
    engine: Engine = request.app.state.engine
    scraped = engine.render_metrics(request.headers.get("accept", ""))
    return Response(scraped.body, media_type=scraped.content_type)
