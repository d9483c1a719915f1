"""From the fields of a request to what the engine is asked: every id and every sum is checked here.

Checked before anything is submitted, so that a call of many prompts is refused as a whole.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sapwood_engine.api.access import Trusted
from sapwood_engine.api.engine_port import Engine
from sapwood_engine.api.errors import PromptTooLong
from sapwood_engine.checkpoint.sampling_defaults import SamplingDefaults
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.request import Namespace, SamplingParams, StopRules
from sapwood_engine.errors import ContextLengthExceeded, InvalidField, Loading, ModelNotFound
from sapwood_engine.service.generation import Generation
from sapwood_text.sampling_fields import GenerationFields

if TYPE_CHECKING:  # OpenTelemetry's SDK is loaded where traces are kept
    from sapwood_engine.service.call_trace import CallTrace

_LONG_TEXT_CHARACTERS = 1_024
"""Above it a text is tokenized in a thread, because it would hold up every other stream for a millisecond."""
_LEAST_TEMPERATURE = 1e-4
"""Below it the division of logits overflows 32-bit floats, and the draw is greedy in all but name."""
_RETRY_AFTER_SECONDS = 5


def check_model(engine: Engine, name: str | None) -> None:
    """Raise `ModelNotFound` unless ``name`` is the served model (or not given)."""
    if name is not None and name != engine.model_name:
        raise ModelNotFound(name, (engine.model_name,))


def ready_capacity(engine: Engine) -> Capacity:
    """Return the capacity; `Loading` while the weights are still loading."""
    if engine.capacity is None:
        raise Loading(retry_after_seconds=_RETRY_AFTER_SECONDS)
    return engine.capacity


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a generation continues."""

    ids: list[int]
    text: str | None = None
    """What they were made of; None where the client sent ids."""
    tokenize_seconds: float | None = None
    """How long that took; None likewise."""


async def encode(engine: Engine, text: str, *, add_special_tokens: bool, trace: CallTrace | None = None) -> Prompt:
    """Return the prompt that ``text`` is, without holding up the event loop; ``trace``: of the call it is for."""
    begin = time.monotonic()
    if len(text) <= _LONG_TEXT_CHARACTERS:
        ids = engine.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        await asyncio.sleep(0)  # a call may have a thousand short prompts: others get their turn in between
    else:
        ids = await asyncio.to_thread(engine.tokenizer.encode, text, add_special_tokens=add_special_tokens)
    end = time.monotonic()
    if trace is not None:
        trace.tokenized(begin, end)
    return Prompt(ids, text, end - begin)


def check_can_fit(engine: Engine, text: str, field: str) -> None:
    """Raise `PromptTooLong` for a text that needs no tokenizing to be seen as longer than the context.

    Raises `Loading` while the weights load.
    """
    limit = ready_capacity(engine).max_context_tokens
    # The second factor is looked at only for a long text: on first use it walks the vocabulary.
    if len(text) > limit and len(text) > limit * engine.tokenizer.max_characters_per_token:
        raise PromptTooLong(num_characters=len(text), limit_tokens=limit, param=field)


def check_ids(ids: Iterable[int], vocab_size: int, field: str) -> None:
    """Raise `InvalidField` naming the first id that the model does not know."""
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidField(
                f"{field}.{index}",
                token_id,
                f"this model's token ids are 0 to {vocab_size - 1}",
                code="invalid_token_id",
            )


def build_generation(
    engine: Engine,
    body: GenerationFields,
    prompt: Prompt,
    *,
    request_id: str,
    trusted: Trusted,
    max_tokens: int | None,
    num_logprobs: int | None,
    num_prompt_logprobs: int | None = None,
    prompt_field: str,
) -> Generation:
    """Return the generation that ``body`` asks for with this prompt.

    ``trusted``: what the gateway says of the request. ``max_tokens`` None means what the context leaves.
    Raises `InvalidField`, `ContextLengthExceeded`, and `Loading` while the weights load.
    """
    capacity = ready_capacity(engine)
    if not prompt.ids:
        raise InvalidField(prompt_field, "", "the prompt must have at least one token")
    check_ids(body.stop_token_ids or (), capacity.vocab_size, "stop_token_ids")
    for token_id in body.logit_bias or ():
        if token_id >= capacity.vocab_size:
            fix = f"this model's token ids are 0 to {capacity.vocab_size - 1}"
            raise InvalidField("logit_bias", token_id, fix, code="invalid_token_id")
    max_tokens = room_for_answer(max_tokens, len(prompt.ids), capacity.max_context_tokens, prompt_field)
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidField("min_tokens", min_tokens, f"it is more than max_tokens, {max_tokens}")
    stop_token_ids = frozenset(body.stop_token_ids or ())
    if not body.ignore_eos:
        stop_token_ids |= frozenset(engine.tokenizer.eos_token_ids)
    return Generation(
        request_id=request_id,
        prompt_ids=tuple(prompt.ids),
        namespace=Namespace(
            model_revision="", extra_key=body.extra_key, tenant_salt=body.cache_salt, tenant=trusted.tenant
        ),
        sampling=_sampling(
            body,
            engine.sampling_defaults,
            num_logprobs=num_logprobs,
            num_prompt_logprobs=num_prompt_logprobs,
            vocab_size=capacity.vocab_size,
        ),
        seed=body.seed,
        stop=StopRules(max_tokens=max_tokens, min_tokens=min_tokens, stop_token_ids=stop_token_ids),
        stop_strings=tuple(body.stop or ()),
        include_stop_str=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        n=body.n or 1,
        priority=_priority(body.priority or 0, trusted.priority_ceiling),
        routing_key=body.routing_key or body.prompt_cache_key,
        cache_pin_seconds=body.cache_pin_seconds or 0.0,
        tokenize_seconds=prompt.tokenize_seconds,
    )


def _priority(asked: int, ceiling: int | None) -> int:
    return asked if ceiling is None else min(asked, ceiling)


def room_for_answer(asked: int | None, num_prompt: int, limit: int, prompt_field: str) -> int:
    """Return the answer's longest length in tokens; raises `ContextLengthExceeded` where it does not fit."""
    num_left = limit - num_prompt
    max_tokens = max(num_left, 1) if asked is None else asked
    if max_tokens > num_left:
        raise ContextLengthExceeded(
            prompt_tokens=num_prompt, max_tokens=max_tokens, limit_tokens=limit, param=prompt_field
        )
    return max_tokens


def _sampling(
    body: GenerationFields,
    defaults: SamplingDefaults,
    *,
    num_logprobs: int | None,
    num_prompt_logprobs: int | None,
    vocab_size: int,
) -> SamplingParams:
    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    top_k = defaults.top_k if body.top_k is None else body.top_k
    temperature = given(body.temperature, defaults.temperature)
    return SamplingParams(
        seed=0,  # the client sets it from `Generation.seed`, a fresh one for each choice where that is None
        temperature=temperature if temperature >= _LEAST_TEMPERATURE else 0.0,
        top_k=top_k if 0 < top_k < vocab_size else 0,
        top_p=given(body.top_p, defaults.top_p),
        min_p=given(body.min_p, defaults.min_p),
        presence_penalty=given(body.presence_penalty, 0.0),
        frequency_penalty=given(body.frequency_penalty, 0.0),
        repetition_penalty=given(body.repetition_penalty, defaults.repetition_penalty),
        logit_bias=tuple((body.logit_bias or {}).items()),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
    )
