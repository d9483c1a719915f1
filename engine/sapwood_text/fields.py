"""How a request body is read: strictly, and every refusal names the field.

A field that is unknown, or known but not built yet, is refused rather than ignored: a client that asked for
JSON and got prose would notice far too late. `null` always means "not given", as in OpenAI's API.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

_MAX_NAME = 64
"""Characters of an unknown name that are looked at: the client chooses it, and matching is quadratic."""

REFUSED = "sapwood_refused"
"""Type of the validation errors made by `refuse`; the engine's `api.errors` reads their context back."""


def refuse(field: str, value: object, fix: str, *, code: str = "invalid_value") -> PydanticCustomError:
    """Make the error that a validator raises for ``field``: a path below what it validates, or ""."""
    return PydanticCustomError(REFUSED, "{fix}", {"field": field, "value": value, "fix": fix, "code": code})


def _secret(value: Any) -> Any:
    """Check here what would be quoted where it is refused."""
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= MAX_KEY_CHARACTERS):
        raise refuse("", "***", f"it must be a string of 1 to {MAX_KEY_CHARACTERS} characters")
    return value


MAX_KEY_CHARACTERS = 256
Key = Annotated[str, Field(min_length=1, max_length=MAX_KEY_CHARACTERS)]
"""A word of the caller's that keeps prefixes apart."""
Salt = Annotated[
    str | None, BeforeValidator(_secret), WithJsonSchema(TypeAdapter(Key | None).json_schema(mode="validation"))
]
"""The same, and secret: whoever knows it can find out what its owner asked."""


class Fields(BaseModel):
    """Base of every JSON object that a client sends: strict types, finite numbers, no unknown names."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    not_built: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Fields of OpenAI's API that are not built -> those of their values that ask for nothing."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_names(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        kept = {}
        for name, value in body.items():
            if name in cls.model_fields:
                kept[name] = value
            elif name in cls.not_built:
                if value is not None and value not in cls.not_built[name]:
                    raise refuse(name, value, "this is not supported yet", code="unsupported_parameter")
            else:
                close = difflib.get_close_matches(name[:_MAX_NAME], cls.model_fields, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise refuse(name[:_MAX_NAME], value, f"there is no such field{hint}", code="unknown_parameter")
        return kept
