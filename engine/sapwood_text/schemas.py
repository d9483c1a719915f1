"""The request bodies of the OpenAI endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from sapwood_text.fields import Fields, refuse
from sapwood_text.sampling_fields import MAX_TOP_LOGPROBS, GenerationFields

MAX_PROMPTS = 1024
MAX_MESSAGES = 16_384
MAX_TOKENIZED_CHARACTERS = 1_000_000
"""Of ``/tokenize``, which no context bounds: about a second's work."""
MAX_DETOKENIZED_IDS = 1_000_000

TAKEN_TEMPLATE_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that transformers' `apply_chat_template`, or what it renders with, takes for itself."""


class TextPart(Fields):
    """A part of a message's content; text is the only kind so far."""

    type: Literal["text"]
    text: str


def _join_parts(content: Any) -> Any:
    """A list of text parts reads as the same prompt as one string with a line break between the parts."""
    if not isinstance(content, list):
        return content
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            fix = "only parts of type 'text' are supported" if isinstance(part, dict) else "a part is an object"
            raise refuse(f"{index}.type" if isinstance(part, dict) else str(index), kind, fix)
        if set(part) != {"type", "text"} or not isinstance(part["text"], str):
            raise refuse(f"{index}.text", part.get("text"), "a text part has 'type' and 'text' (a string), only")
        texts.append(part["text"])
    return "\n".join(texts)


class FunctionCall(Fields):
    """What an earlier assistant turn called."""

    name: str
    arguments: str


class ToolCall(Fields):
    """A tool call in an earlier assistant turn; rendered by the model's chat template."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(Fields):
    """One turn. An assistant's turn may lack content; nobody else's may."""

    not_built: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "refusal": (),
        "audio": (),
        "function_call": (),
        "annotations": ([],),
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_join_parts, json_schema_input_type=str | list[TextPart])] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _content_is_there(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise refuse("content", None, f"a message of role {self.role!r} needs content")
        return self


def _template_arguments(value: Any) -> Any:
    if isinstance(value, dict):
        for name, argument in value.items():
            if name in TAKEN_TEMPLATE_ARGUMENTS:
                raise refuse(name, argument, "this argument of the template is set by the request's own fields")
            if not isinstance(argument, str | int | float | None):
                raise refuse(name, type(argument).__name__, "only strings, numbers, booleans and null are passed on")
    return value


class PromptFields(Fields):
    """How messages become a prompt."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    add_generation_prompt: bool | None = Field(None, description="Open the assistant's turn; true by default.")
    continue_final_message: bool | None = Field(None, description="Go on with the last message, an assistant's.")
    chat_template_kwargs: Annotated[dict[str, Any], BeforeValidator(_template_arguments)] | None = None

    @model_validator(mode="after")
    def _one_way_to_end_the_prompt(self) -> PromptFields:
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise refuse("add_generation_prompt", True, "it cannot go with continue_final_message")
            if self.messages[-1].role != "assistant" or not self.messages[-1].content:
                raise refuse("continue_final_message", True, "the last message must be an assistant's, with content")
        return self


class ChatCompletionRequest(GenerationFields, PromptFields):
    """Body of ``POST /v1/chat/completions``."""

    not_built: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **GenerationFields.not_built,
        "audio": (),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "parallel_tool_calls": (),
        "prediction": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": (),
        "reasoning_effort": ("none",),
        "response_format": ({"type": "text"},),
        "tool_choice": ("none",),
        "tools": ([],),
        "verbosity": (),
        "web_search_options": (),
    }

    max_completion_tokens: int | None = Field(None, ge=1, le=2**31 - 1, description="The newer name of max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatCompletionRequest:
        if self.max_tokens == 0:
            raise refuse("max_tokens", 0, "ask for at least 1 token")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise refuse("max_tokens", self.max_tokens, "it differs from max_completion_tokens; give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise refuse("top_logprobs", self.top_logprobs, "it needs 'logprobs': true")
        return self


Prompts = list[str | list[int]]
"""All strings or all token ids."""


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _as_prompts(value: Any) -> Prompts:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise refuse("", value, "give a string, a list of strings, a list of token ids or a list of such lists")
    if type(value[0]) is int:
        if _is_ids(value):
            return [value]
        raise refuse("", value, "a list that starts with a token id holds token ids only")
    if len(value) > MAX_PROMPTS:
        raise refuse("", len(value), f"one call takes at most {MAX_PROMPTS} prompts")
    wanted = "a string" if isinstance(value[0], str) else "a list of token ids"
    for index, prompt in enumerate(value):
        if not (isinstance(prompt, str) if isinstance(value[0], str) else _is_ids(prompt)):
            raise refuse(str(index), prompt, f"this prompt must be {wanted}, like the first")
    return value


_TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
_PromptInput = (
    str
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
    | _TokenIds
    | Annotated[list[_TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
)


class CompletionRequest(GenerationFields):
    """Body of ``POST /v1/completions``."""

    prompt: Annotated[Prompts, PlainValidator(_as_prompts, json_schema_input_type=_PromptInput)]
    echo: bool | None = Field(None, description="Put the prompt before the text.")
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    best_of: int | None = Field(None, ge=1, description="Only the value of n is supported.")

    @model_validator(mode="after")
    def _fields_agree(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise refuse("max_tokens", 0, "ask for at least 1 token; 0 goes with 'echo': true only")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise refuse("best_of", self.best_of, "only best_of equal to n is supported")
        if len(self.prompt) * (self.n or 1) > MAX_PROMPTS:
            raise refuse("n", self.n, f"prompts times n is at most {MAX_PROMPTS}")
        return self


class TokenizeRequest(Fields):
    """Body of ``POST /tokenize``: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = Field(None, max_length=MAX_TOKENIZED_CHARACTERS)
    messages: list[Message] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = Field(None, description="For a prompt; true by default.")

    @model_validator(mode="after")
    def _one_source(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise refuse("prompt", self.prompt, "give either 'prompt' or 'messages'", code="missing_required_parameter")
        return self


class DetokenizeRequest(Fields):
    """Body of ``POST /detokenize``."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]] = Field(max_length=MAX_DETOKENIZED_IDS)
    skip_special_tokens: bool | None = Field(None, description="False by default: the exact text.")
