"""``GET /v1/models`` and ``GET /v1/models/{id}``: the one model served here."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sapwood_engine.api.answers import ModelCard, ModelList
from sapwood_engine.api.documented import answered_with
from sapwood_engine.api.engine_port import Engine
from sapwood_engine.api.errors import json_response
from sapwood_engine.api.generation import check_model

router = APIRouter()


def _card(engine: Engine) -> ModelCard:
    limit = None if engine.capacity is None else engine.capacity.max_context_tokens
    return ModelCard(engine.model_name, engine.created, limit)


@router.get("/v1/models", summary="List the models served here", responses=answered_with(ModelList))
async def list_models(request: Request) -> Response:
    """Return a list of one."""
    return json_response(ModelList([_card(request.app.state.engine)]))


@router.get("/v1/models/{model:path}", summary="Look at one model", responses=answered_with(ModelCard))
async def show_model(model: str, request: Request) -> Response:
    """Return the model's card; its name may hold slashes."""
    engine: Engine = request.app.state.engine
    check_model(engine, model)
    return json_response(_card(engine))
