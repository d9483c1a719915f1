"""The fields that chat and text completions share: how tokens are drawn, and when generation ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from sapwood_text.fields import Fields, Key, Salt, refuse

MAX_STOP_STRINGS = 16
"""OpenAI takes 4; 16 leaves room for agents' markers and keeps the scan of every token cheap."""
MAX_STOP_CHARACTERS = 1024
"""Of one: what may be its beginning is held back from the stream, and looked through at every token."""
MAX_CHOICES = 128
MAX_BIASED_TOKENS = 1024
"""As many as stop_token_ids: every step of the request adds them to its logits."""
MAX_TOP_LOGPROBS = 20

_LEFT_OUT = "Left out or null: as the checkpoint recommends (see --sampling-defaults)."
_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "default"),
    "store": (False,),
    "moderation": (),
    "logits_processors": ([],),
    "suffix": ("",),
}


def _as_stop_list(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if isinstance(stops, list):
        for index, stop in enumerate(stops):
            where = "" if isinstance(value, str) else str(index)
            if stop == "":
                raise refuse(where, stop, "an empty stop string matches everywhere; leave it out")
            if isinstance(stop, str) and len(stop) > MAX_STOP_CHARACTERS:
                raise refuse(where, stop, f"a stop string has at most {MAX_STOP_CHARACTERS} characters")
    return stops


def _as_token_bias(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_BIASED_TOKENS:
        raise refuse("", len(value), f"at most {MAX_BIASED_TOKENS} tokens can be given a bias")
    bias: dict[int, Any] = {}
    for key, amount in value.items():
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10):
            raise refuse(str(key), amount, "a key is a token id: a whole number, 0 or more")
        bias[int(key)] = amount
    return bias


_StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
_StopStrings = Annotated[list[_StopString], Field(max_length=MAX_STOP_STRINGS)]
_Stop = Annotated[_StopStrings, BeforeValidator(_as_stop_list, json_schema_input_type=_StopString | _StopStrings)]
_Bias = Annotated[float, Field(ge=-100, le=100)]
_BiasOfId = Annotated[
    dict[Annotated[str, Field(pattern="^[0-9]{1,10}$")], _Bias],
    Field(json_schema_extra={"additionalProperties": False, "maxProperties": MAX_BIASED_TOKENS}),
]
_LogitBias = Annotated[dict[int, _Bias], BeforeValidator(_as_token_bias, json_schema_input_type=_BiasOfId)]


class StreamOptions(Fields):
    """``stream_options``."""

    include_usage: bool | None = Field(None, description="Send a last chunk with the usage and no choices.")


class GenerationFields(Fields):
    """What every request for a generation may hold; `None` means not given."""

    not_built: ClassVar[Mapping[str, tuple[Any, ...]]] = _HARMLESS

    model: str = Field(description="Name of the served model.")
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Choices for each prompt; 1 by default.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=0, le=2**31 - 1, description="By default what the context leaves.")
    min_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    temperature: float | None = Field(None, ge=0, le=2, description=f"0 (or below 0.0001) is greedy. {_LEFT_OUT}")
    top_p: float | None = Field(None, gt=0, le=1, description=_LEFT_OUT)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1, description=f"0 or -1 keep all tokens. {_LEFT_OUT}")
    min_p: float | None = Field(None, ge=0, le=1, description=_LEFT_OUT)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=2, description=f"1 changes nothing. {_LEFT_OUT}")
    logit_bias: _LogitBias | None = None
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: _Stop | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(None, max_length=1024)
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = Field(None, description="Leave special tokens out of the text; true by default.")
    include_stop_str_in_output: bool | None = None
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1, description="Higher is served first.")
    cache_salt: Salt = Field(None, description="Only requests with the same salt share cached prefixes.")
    cache_pin_seconds: float | None = Field(
        None, ge=0, le=86_400, description="Under the eviction policy ttl: how long the cache keeps prompt and answer."
    )
    extra_key: Key | None = Field(None, description="A second, independent part of the cache's namespace.")
    routing_key: Key | None = Field(None, description="Groups requests under the routing-key policy.")
    prompt_cache_key: Key | None = Field(None, description="OpenAI's name for routing_key.")
    user: str | None = Field(None, description="Accepted and not used.")
    safety_identifier: str | None = Field(None, description="Accepted and not used.")
    metadata: dict[str, str] | None = Field(None, description="Accepted and not used.")

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> GenerationFields:
        if self.stream_options is not None and not self.stream:
            raise refuse("stream_options", {}, "it goes with 'stream': true only")
        return self
