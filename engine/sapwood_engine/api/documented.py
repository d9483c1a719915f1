"""What the OpenAPI document says of answers; the shapes themselves are in `answers`."""

from __future__ import annotations

from typing import Any

from sapwood_engine.api.answers import ErrorAnswer

ERROR_STATUSES = (
    "400 a field that cannot be used, 401 the API key, 404 an unknown model or path, 405 the method, "
    "413 and 415 the body, 429 the queue is full, 500 a failure, 503 loading or draining"
)
_ERROR: dict[str, Any] = {"model": ErrorAnswer, "description": f"An error: {ERROR_STATUSES}."}


def answered_with(shape: type[Any], *, streams: bool = False) -> dict[int | str, dict[str, Any]]:
    """Document a 200 of ``shape`` (and its stream of chunks where there is one) and the error object."""
    good: dict[str, Any] = {"model": shape, "description": "The answer."}
    if streams:
        good["content"] = {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "description": "An event: a chunk as JSON, or the `[DONE]` at the end, or an error.",
                    "properties": {"data": {"type": "string"}},
                    "required": ["data"],
                }
            }
        }
    return {200: good, "default": _ERROR}


def answered_with_bytes(media_type: str) -> dict[int | str, dict[str, Any]]:
    """Document a 200 of ``media_type`` and the error object."""
    content = {media_type: {"schema": {"type": "string", "format": "binary"}}}
    return {200: {"content": content, "description": "The answer."}, "default": _ERROR}
