"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from sapwood_engine.api.answers import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ContentLogprob,
    Usage,
)
from sapwood_engine.api.call import Heading, answer
from sapwood_engine.api.documented import answered_with
from sapwood_engine.api.engine_port import Engine
from sapwood_engine.api.generation import build_generation, check_can_fit, check_model, encode, ready_capacity
from sapwood_engine.api.logprobs import chat_logprobs
from sapwood_engine.api.schemas import ChatCompletionRequest, Message
from sapwood_engine.api.strict_body import StrictRoute, beside_streams
from sapwood_engine.service.generation import TextDelta

router = APIRouter(route_class=StrictRoute)


@router.post(
    "/v1/chat/completions",
    summary="Answer a conversation",
    responses=answered_with(ChatCompletion, streams=True),
)
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Render the messages with the model's chat template and generate the assistant's turn."""
    engine: Engine = request.app.state.engine
    check_model(engine, body.model)
    ready_capacity(engine)
    arguments = (body.chat_template_kwargs or {}) | how_the_prompt_ends(
        body.add_generation_prompt, body.continue_final_message
    )
    prompt = await beside_streams(request, lambda: render(engine, body.messages, arguments))
    check_can_fit(engine, prompt, "messages")
    generation = build_generation(
        engine,
        body,
        await encode(engine, prompt, add_special_tokens=False),
        request_id=request.state.request_id,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_field="messages",
    )
    writer = ChatWriter(Heading(engine, body, "chatcmpl"), with_logprobs=bool(body.logprobs))
    return await answer(request, engine, [generation], writer, stream=bool(body.stream))


def render(engine: Engine, messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
    """Return the prompt that the model's chat template makes of ``messages``; `InvalidField` where it refuses them."""
    return engine.tokenizer.render_chat([template_message(message) for message in messages], **arguments)


def how_the_prompt_ends(add_generation_prompt: bool | None, continue_final_message: bool | None) -> dict[str, bool]:
    """Return the template's arguments; the second is left out unless asked for, as few templates know it."""
    if continue_final_message:
        return {"add_generation_prompt": False, "continue_final_message": True}
    return {"add_generation_prompt": add_generation_prompt is not False}


def template_message(message: Message) -> dict[str, Any]:
    """Return ``message`` as chat templates expect it: content is always text, arguments are objects.

    A missing content becomes "", because templates would print "None"; a developer is a system, because
    open models know no developer and some templates would drop the turn.
    """
    role = "system" if message.role == "developer" else message.role
    turn: dict[str, Any] = {"role": role, "content": message.content or ""}
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {"name": call.function.name, "arguments": _as_object(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    return turn


def _as_object(arguments: str) -> dict[str, Any] | str:
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):  # what a model once wrote need not be JSON
        return arguments


@dataclass(slots=True)
class _Taken:
    texts: list[str] = field(default_factory=list)
    logprobs: list[ContentLogprob] = field(default_factory=list)
    last: TextDelta | None = None


class ChatWriter:
    """Writes chat completions and their chunks: the role first, the finish reason in a chunk of its own."""

    def __init__(self, heading: Heading, *, with_logprobs: bool) -> None:
        self.heading = heading
        self._with_logprobs = with_logprobs
        self._taken: dict[int, _Taken] = {}
        self._opened: set[int] = set()

    def take(self, index: int, delta: TextDelta) -> None:
        """Keep ``delta`` for `whole`."""
        taken = self._taken.setdefault(index, _Taken())
        taken.texts.append(delta.text)
        if self._with_logprobs:
            taken.logprobs += chat_logprobs(delta.logprobs).content
        taken.last = delta

    def whole(self, usage: Usage) -> ChatCompletion:
        """Return the completion made of everything taken."""
        choices = []
        for index, taken in sorted(self._taken.items()):
            last = taken.last
            assert last is not None
            assert last.finish_reason is not None, f"choice {index} ended without a finish reason"
            message = AnswerMessage("".join(taken.texts))
            logprobs = ChatLogprobs(taken.logprobs) if self._with_logprobs else None
            choices.append(ChatChoice(index, message, logprobs, last.finish_reason, last.stop_reason))
        return ChatCompletion(self.heading.id, self.heading.created, self.heading.model, choices, usage)

    def chunks(self, index: int, delta: TextDelta) -> list[ChatChunk]:
        """Return the chunks that ``delta`` becomes."""
        chunks = []
        if index not in self._opened:
            self._opened.add(index)
            chunks.append(self._chunk(ChatChunkChoice(index, ChatDelta(role="assistant", content=""))))
        if delta.text or (self._with_logprobs and delta.logprobs):
            logprobs = chat_logprobs(delta.logprobs) if self._with_logprobs else None
            chunks.append(self._chunk(ChatChunkChoice(index, ChatDelta(content=delta.text), logprobs)))
        if delta.finish_reason is not None:
            last = ChatChunkChoice(index, ChatDelta(), finish_reason=delta.finish_reason, stop_reason=delta.stop_reason)
            chunks.append(self._chunk(last))
        return chunks

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        """Return the chunk without choices that carries the usage."""
        return ChatChunk(self.heading.id, self.heading.created, self.heading.model, [], usage)

    def _chunk(self, choice: ChatChunkChoice) -> ChatChunk:
        heading = self.heading
        return ChatChunk(heading.id, heading.created, heading.model, [choice], heading.chunk_usage)
