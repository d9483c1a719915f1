"""``POST /tokenize`` and ``POST /detokenize``: exactly the ids that a generation would see."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from sapwood_engine.api.answers import Text, Tokens
from sapwood_engine.api.documented import answered_with
from sapwood_engine.api.engine_port import Engine
from sapwood_engine.api.errors import json_response
from sapwood_engine.api.generation import check_ids, check_model, encode, ready_capacity
from sapwood_engine.api.strict_body import StrictRoute, beside_streams
from sapwood_engine.errors import InvalidField
from sapwood_text.conversation import render
from sapwood_text.schemas import MAX_TOKENIZED_CHARACTERS, DetokenizeRequest, TokenizeRequest

router = APIRouter(route_class=StrictRoute)


@router.post("/tokenize", summary="Text or messages to token ids", responses=answered_with(Tokens))
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Tokenize a prompt as ``/v1/completions`` would, or messages as ``/v1/chat/completions`` would."""
    engine: Engine = request.app.state.engine
    check_model(engine, body.model)
    if body.messages is None:
        assert body.prompt is not None, "the schema asks for one of the two"
        text, add_special_tokens = body.prompt, body.add_special_tokens is not False
    else:
        messages, opens_answer = body.messages, body.add_generation_prompt
        text = await beside_streams(
            request, lambda: render(engine.tokenizer, messages, add_generation_prompt=opens_answer)
        )
        add_special_tokens = False
        if len(text) > MAX_TOKENIZED_CHARACTERS:
            fix = f"they make a prompt of more than {MAX_TOKENIZED_CHARACTERS} characters, the most taken here"
            raise InvalidField("messages", len(text), fix)
    ids = (await encode(engine, text, add_special_tokens=add_special_tokens)).ids
    limit = None if engine.capacity is None else engine.capacity.max_context_tokens
    return json_response(Tokens(ids, len(ids), limit))


@router.post("/detokenize", summary="Token ids to text", responses=answered_with(Text))
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """Return the text of the ids."""
    engine: Engine = request.app.state.engine
    check_model(engine, body.model)
    vocab_size = ready_capacity(engine).vocab_size
    await beside_streams(request, lambda: check_ids(body.tokens, vocab_size, "tokens"))
    skip_special_tokens = bool(body.skip_special_tokens)
    text = await asyncio.to_thread(engine.tokenizer.decode, body.tokens, skip_special_tokens=skip_special_tokens)
    return json_response(Text(text))
