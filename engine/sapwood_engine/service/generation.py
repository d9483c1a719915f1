"""What the API asks for, and what it gets: values, and the one place where token ids of a choice become
its text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from sapwood_engine.core.admission import token_limit
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.request import (
    FinishReason,
    Namespace,
    Request,
    RequestId,
    SamplingParams,
    StopRules,
    TokenLogprobs,
)
from sapwood_engine.core.stops import StopMatcher
from sapwood_engine.errors import ContextLengthExceeded, InvalidField
from sapwood_engine.service.messages import Delta
from sapwood_text.tokenizer import Detokenizer, Tokenizer

if TYPE_CHECKING:  # OpenTelemetry's SDK is loaded where traces are kept
    from sapwood_engine.service.call_trace import CallTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One prompt, one call, ``n`` choices."""

    prompt_ids: tuple[int, ...]
    namespace: Namespace
    """Its ``model_revision`` is filled in by the client."""
    sampling: SamplingParams
    """Its ``seed`` is replaced by ``seed``, or by one drawn."""
    stop: StopRules
    request_id: str
    """What the caller calls it; need not be unique."""
    seed: int | None = None
    """Choice ``i`` is sampled with ``seed + i``; None: the client draws one."""
    stop_strings: tuple[str, ...] = ()
    include_stop_str: bool = False
    """Whether the text ends with the stop string, or stop token, that ended it."""
    skip_special_tokens: bool = True
    n: int = 1
    priority: int = 0
    routing_key: str | None = None
    cache_pin_seconds: float = 0.0
    tokenize_seconds: float | None = None
    """How long the caller took to make ``prompt_ids`` of a text; None where it was given ids."""
    trace: CallTrace | None = None
    """Of its call; None where that is not traced."""


TopToken = tuple[int, str, bytes, float]
"""``(token_id, text, bytes, logprob)``"""


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token with its log-probability."""

    token_id: int
    text: str
    """Bytes that are no whole character on their own show as U+FFFD."""
    bytes: bytes
    logprob: float
    top: tuple[TopToken, ...]
    """The most likely tokens, best first."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one choice has to say since the last time."""

    index: int
    """Of the choice."""
    text: str
    token_ids: tuple[int, ...]
    """The token that ended the choice included; its text is not in ``text`` unless asked for."""
    logprobs: tuple[TokenInfo, ...]
    """One for each of ``token_ids`` where asked for, else empty."""
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None
    """The stop string or stop token that ended the choice; None for the end-of-sequence token."""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    """Of this choice so far."""
    prompt_logprobs: tuple[TokenInfo | None, ...] | None
    """One a prompt token, the first unknown; with a choice's first delta where asked for."""


SEED_VALUES = 1 << 63


def choice_request(
    generation: Generation, namespace: Namespace, engine_id: RequestId, *, seed: int, index: int
) -> Request:
    """Return what the worker is asked for choice ``index``; ``seed``: of the first one."""
    return Request(
        request_id=engine_id,
        namespace=namespace,
        prompt_ids=generation.prompt_ids,
        sampling=replace(generation.sampling, seed=(seed + index) % SEED_VALUES),
        stop=generation.stop,
        priority=generation.priority,
        routing_key=generation.routing_key,
        cache_pin_seconds=generation.cache_pin_seconds,
        is_sibling=index > 0,
    )


def check_generation(generation: Generation, capacity: Capacity) -> None:
    """Raise the `RequestError` that fits where the engine could not compute ``generation``, ever."""
    num_prompt, max_tokens = len(generation.prompt_ids), generation.stop.max_tokens
    if num_prompt == 0:
        raise InvalidField("prompt", "", "it has no tokens; give at least one")
    limit = token_limit(capacity)
    if num_prompt + max_tokens > limit:
        raise ContextLengthExceeded(prompt_tokens=num_prompt, max_tokens=max_tokens, limit_tokens=limit)
    named_ids = {
        "prompt": generation.prompt_ids,
        "logit_bias": tuple(token_id for token_id, _ in generation.sampling.logit_bias),
        "stop_token_ids": tuple(generation.stop.stop_token_ids),
    }
    for name, ids in named_ids.items():
        if ids and not 0 <= min(ids) <= max(ids) < capacity.vocab_size:
            outside = next(i for i in ids if not 0 <= i < capacity.vocab_size)
            raise InvalidField(name, outside, f"token ids go from 0 to {capacity.vocab_size - 1}")


class ChoiceText:
    """Turns the deltas of one choice into text, and finds its stop strings."""

    def __init__(self, generation: Generation, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._include_stop = generation.include_stop_str
        self._min_tokens = generation.stop.min_tokens
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=generation.skip_special_tokens,
            prompt_tail_ids=generation.prompt_ids[-1:],
        )
        self._matcher = StopMatcher(generation.stop_strings)
        self.num_output_tokens = 0

    def push(self, delta: Delta) -> PushedText:
        """Take the next tokens; must not be called after one that finished."""
        stop_token = delta.token_ids[-1] if delta.finish == "stop" and delta.token_ids else None
        parts: list[str] = []
        for used, token_id in enumerate(delta.token_ids, start=1):
            self.num_output_tokens += 1
            is_last = used == len(delta.token_ids)
            if is_last and stop_token is not None and not self._include_stop:
                break
            text = self._detokenizer.push((token_id,))
            if self.num_output_tokens < self._min_tokens:
                parts.append(text)
                continue
            scan = self._matcher.push(text)
            parts.append(scan.text)
            if scan.matched is not None:
                parts.append(scan.matched if self._include_stop else "")
                return PushedText("".join(parts), used, "stop", scan.matched)
        if delta.finish is not None:
            parts.append(self._matcher.push(self._detokenizer.flush()).text + self._matcher.flush())
        ended_by = None if stop_token in self._tokenizer.eos_token_ids else stop_token
        return PushedText("".join(parts), len(delta.token_ids), delta.finish, ended_by)

    def describe(self, logprobs: TokenLogprobs) -> TokenInfo:
        """Return a position's log-probabilities with the tokens' texts."""
        text, data = self._text_and_bytes(logprobs.token_id)
        top = tuple((token_id, *self._text_and_bytes(token_id), value) for token_id, value in logprobs.top)
        return TokenInfo(logprobs.token_id, text, data, logprobs.logprob, top)

    def _text_and_bytes(self, token_id: int) -> tuple[str, bytes]:
        data = self._tokenizer.token_bytes(token_id)
        return data.decode(errors="replace"), data


@dataclass(frozen=True, slots=True)
class PushedText:
    """What a delta came to."""

    text: str
    num_tokens: int
    """Of the delta's tokens, how many belong to the choice: those after a stop string do not."""
    finish: FinishReason | None
    stop_reason: str | int | None
