"""The shapes of answers: what FastAPI documents and msgspec encodes.

Log-probabilities of minus infinity are sent as -9999.0, because JSON has no infinity.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

FinishReason = Literal["stop", "length"]
Unset = msgspec.UnsetType


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    message: str
    type: str
    param: str | None
    code: str | None


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class PromptTokensDetails:
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Prompt tokens count once for all choices of a prompt; so do those found in the prefix cache, which are null
    where they are not told."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None


# --- chat


@dataclass(frozen=True, slots=True)
class TopLogprob:
    token: str
    logprob: float
    bytes: list[int]


@dataclass(frozen=True, slots=True)
class ContentLogprob:
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


@dataclass(frozen=True, slots=True)
class ChatLogprobs:
    content: list[ContentLogprob]
    refusal: None = None


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    annotations: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ChatChoice:
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    """The stop string or stop token id that ended the text, as in vLLM; null for an end of sequence."""


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Literal["assistant"] | Unset = msgspec.UNSET
    content: str | Unset = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | Unset | None = msgspec.UNSET


class ChatChunk(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | Unset | None
    """Null in all chunks but the last where usage was asked for, else absent."""
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


# --- text


@dataclass(frozen=True, slots=True)
class TextLogprobs:
    """One entry a token; the first token of an echoed prompt has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Characters of the text, prompt included where echoed, before the token."""


@dataclass(frozen=True, slots=True)
class TextChoice:
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class TextCompletion:
    id: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    object: Literal["text_completion"] = "text_completion"


class TextChunkChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | Unset | None = msgspec.UNSET


class TextChunk(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[TextChunkChoice]
    usage: Usage | Unset | None
    object: Literal["text_completion"] = "text_completion"


# --- models and tokens


@dataclass(frozen=True, slots=True)
class ModelCard:
    id: str
    created: int
    max_model_len: int | None
    """Most tokens of one request; null until the weights are loaded."""
    object: Literal["model"] = "model"
    owned_by: Literal["sapwood"] = "sapwood"


@dataclass(frozen=True, slots=True)
class ModelList:
    data: list[ModelCard]
    object: Literal["list"] = "list"


@dataclass(frozen=True, slots=True)
class Tokens:
    tokens: list[int]
    count: int
    max_model_len: int | None


@dataclass(frozen=True, slots=True)
class Text:
    prompt: str
