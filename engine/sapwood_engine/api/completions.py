"""``POST /v1/completions``: text that goes on from a prompt, or from each of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fastapi import APIRouter, Request, Response

from sapwood_engine.api.answers import (
    TextChoice,
    TextChunk,
    TextChunkChoice,
    TextCompletion,
    TextLogprobs,
    Usage,
)
from sapwood_engine.api.call import Heading, answer
from sapwood_engine.api.documented import answered_with
from sapwood_engine.api.engine_port import Engine, Tokenizer
from sapwood_engine.api.generation import (
    Prompt,
    build_generation,
    check_can_fit,
    check_ids,
    check_model,
    encode,
    ready_capacity,
    room_for_answer,
)
from sapwood_engine.api.logprobs import TextLogprobWriter, extend
from sapwood_engine.api.strict_body import StrictRoute, beside_streams
from sapwood_engine.api.traced import trace_of
from sapwood_engine.service.generation import TextDelta, TokenInfo
from sapwood_text.schemas import CompletionRequest, Prompts

router = APIRouter(route_class=StrictRoute)


@router.post(
    "/v1/completions",
    summary="Go on with a text",
    responses=answered_with(TextCompletion, streams=True),
)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Generate ``n`` choices for each prompt; those of prompt ``p`` are numbered from ``p * n`` on."""
    engine: Engine = request.app.state.engine
    check_model(engine, body.model)
    prompts = await _read_prompts(engine, body, request)
    generations = [
        build_generation(
            engine,
            body,
            prompt,
            request_id=request.state.request_id,
            trusted=request.state.trusted,
            max_tokens=body.max_tokens,
            num_logprobs=body.logprobs,
            num_prompt_logprobs=body.logprobs if body.echo else None,
            prompt_field="prompt",
        )
        for prompt in prompts
    ]
    writer = TextWriter(
        Heading(engine, body, "cmpl"),
        echoes=[_Echo.of(engine.tokenizer, prompt) for prompt in prompts] if body.echo else None,
        num_choices=body.n or 1,
        with_logprobs=body.logprobs is not None,
    )
    return await answer(request, engine, generations, writer, stream=bool(body.stream))


async def _read_prompts(engine: Engine, body: CompletionRequest, request: Request) -> list[Prompt]:
    capacity = ready_capacity(engine)
    for prompt in body.prompt:  # all of them before the first is looked into: this costs nothing
        if isinstance(prompt, str):
            check_can_fit(engine, prompt, "prompt")
        else:
            room_for_answer(body.max_tokens, len(prompt), capacity.max_context_tokens, "prompt")
    await beside_streams(request, lambda: _check_all_ids(body.prompt, capacity.vocab_size))
    prompts = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            prompts.append(await encode(engine, prompt, add_special_tokens=True, trace=trace_of(request.scope)))
        else:
            prompts.append(Prompt(prompt))
    return prompts


def _check_all_ids(prompts: Prompts, vocab_size: int) -> None:
    for index, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            check_ids(prompt, vocab_size, "prompt" if len(prompts) == 1 else f"prompt.{index}")


@dataclass(frozen=True, slots=True)
class _Echo:
    """A prompt given back before its choices."""

    text: str
    first: TokenInfo
    """The prompt's first token, which nothing predicts."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, prompt: Prompt) -> _Echo:
        first_id = prompt.ids[0]
        text = tokenizer.decode(prompt.ids) if prompt.text is None else prompt.text
        first = tokenizer.decode([first_id], skip_special_tokens=False)
        return cls(text, TokenInfo(first_id, first, tokenizer.token_bytes(first_id), 0.0, ()))


class _Choice:
    """One choice while its deltas pass: what was said, and how far the text has come."""

    def __init__(self, echo: _Echo | None, *, with_logprobs: bool) -> None:
        self._echo = echo
        self._writer = TextLogprobWriter() if with_logprobs else None

    def read(self, delta: TextDelta) -> tuple[str, TextLogprobs | None]:
        """Return text and log-probabilities of ``delta``, the echoed prompt before the first."""
        echo, self._echo = self._echo, None
        text = delta.text if echo is None else echo.text + delta.text
        if self._writer is None:
            return text, None
        logprobs = TextLogprobs([], [], [], [])
        if echo is not None:
            scored = [info for info in delta.prompt_logprobs or () if info is not None]
            extend(logprobs, self._writer.write([echo.first, *scored], first_has_none=True))
        extend(logprobs, self._writer.write(delta.logprobs))
        return text, logprobs


@dataclass(slots=True)
class _Taken:
    texts: list[str] = field(default_factory=list)
    logprobs: TextLogprobs = field(default_factory=lambda: TextLogprobs([], [], [], []))
    last: TextDelta | None = None


class TextWriter:
    """Writes text completions and their chunks: the finish reason in a chunk of its own."""

    def __init__(
        self, heading: Heading, *, echoes: Sequence[_Echo] | None, num_choices: int, with_logprobs: bool
    ) -> None:
        self.heading = heading
        self._echoes = echoes
        self._num_choices = num_choices
        self._with_logprobs = with_logprobs
        self._choices: dict[int, _Choice] = {}
        self._taken: dict[int, _Taken] = {}

    def take(self, index: int, delta: TextDelta) -> None:
        """Keep ``delta`` for `whole`."""
        text, logprobs = self._read(index, delta)
        taken = self._taken.setdefault(index, _Taken())
        taken.texts.append(text)
        if logprobs is not None:
            extend(taken.logprobs, logprobs)
        taken.last = delta

    def whole(self, usage: Usage) -> TextCompletion:
        """Return the completion made of everything taken."""
        choices = []
        for index, taken in sorted(self._taken.items()):
            last = taken.last
            assert last is not None
            assert last.finish_reason is not None, f"choice {index} ended without a finish reason"
            logprobs = taken.logprobs if self._with_logprobs else None
            choices.append(TextChoice(index, "".join(taken.texts), logprobs, last.finish_reason, last.stop_reason))
        return TextCompletion(self.heading.id, self.heading.created, self.heading.model, choices, usage)

    def chunks(self, index: int, delta: TextDelta) -> list[TextChunk]:
        """Return the chunks that ``delta`` becomes."""
        chunks = []
        text, logprobs = self._read(index, delta)
        if text or (logprobs is not None and logprobs.tokens):
            chunks.append(self._chunk(TextChunkChoice(index, text, logprobs)))
        if delta.finish_reason is not None:
            last = TextChunkChoice(index, "", finish_reason=delta.finish_reason, stop_reason=delta.stop_reason)
            chunks.append(self._chunk(last))
        return chunks

    def usage_chunk(self, usage: Usage) -> TextChunk:
        """Return the chunk without choices that carries the usage."""
        return TextChunk(self.heading.id, self.heading.created, self.heading.model, [], usage)

    def _read(self, index: int, delta: TextDelta) -> tuple[str, TextLogprobs | None]:
        choice = self._choices.get(index)
        if choice is None:
            echo = None if self._echoes is None else self._echoes[index // self._num_choices]
            choice = self._choices[index] = _Choice(echo, with_logprobs=self._with_logprobs)
        return choice.read(delta)

    def _chunk(self, choice: TextChunkChoice) -> TextChunk:
        heading = self.heading
        return TextChunk(heading.id, heading.created, heading.model, [choice], heading.chunk_usage)
