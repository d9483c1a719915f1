"""``POST /v1/chat/completions``."""

from __future__ import annotations

from dataclasses import dataclass, field

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
from sapwood_engine.api.strict_body import StrictRoute, beside_streams
from sapwood_engine.api.traced import trace_of
from sapwood_engine.service.generation import TextDelta
from sapwood_text.conversation import render
from sapwood_text.schemas import ChatCompletionRequest

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
    prompt = await beside_streams(
        request,
        lambda: render(
            engine.tokenizer,
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template_kwargs=body.chat_template_kwargs,
        ),
    )
    check_can_fit(engine, prompt, "messages")
    generation = build_generation(
        engine,
        body,
        await encode(engine, prompt, add_special_tokens=False, trace=trace_of(request.scope)),
        request_id=request.state.request_id,
        trusted=request.state.trusted,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_field="messages",
    )
    writer = ChatWriter(Heading(engine, body, "chatcmpl"), with_logprobs=bool(body.logprobs))
    return await answer(request, engine, [generation], writer, stream=bool(body.stream))


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
