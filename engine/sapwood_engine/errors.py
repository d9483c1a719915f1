"""The exception tree: what may go wrong, told so that a person can act on it.

::

    SapwoodError
    ├── RequestError              the client's doing: one HTTP answer, the process is unharmed
    │   ├── InvalidField          400  names the field, quotes the value, says what to change
    │   ├── ContextLengthExceeded 400  quotes prompt, max_tokens and the limit
    │   ├── AuthenticationFailed  401
    │   ├── ModelNotFound         404
    │   ├── Overloaded            429  with Retry-After
    │   ├── Loading               503  with Retry-After
    │   └── Draining              503  with Retry-After
    ├── ConfigError               refuses to start: option, value, what to do
    ├── CheckpointError           weights or tokenizer cannot be read: file, tensor, what to do
    ├── GenerationFailed          one answer ended early: its step failed, or it was told to stop
    ├── StepFailed                one step of the model failed; its requests end, the engine lives
    └── WorkerDied                the worker process is gone; every open stream ends with an error

An expected refusal inside the core is a value, never an exception of this tree.
"""

from __future__ import annotations

from typing import ClassVar, Literal

_MAX_QUOTED_CHARACTERS = 80


def quote(value: object) -> str:
    """Return ``repr(value)`` cut to 80 characters, so that an error stays readable and bounded.

    Of a text or list only the beginning is ever turned into text: a client may send megabytes.
    """
    head = value[: _MAX_QUOTED_CHARACTERS + 1] if isinstance(value, str | bytes | list | tuple) else value
    text = repr(head)
    return text if len(text) <= _MAX_QUOTED_CHARACTERS else text[:_MAX_QUOTED_CHARACTERS] + "…"


class SapwoodError(Exception):
    """Root of every error that Sapwood raises on purpose."""


class RequestError(SapwoodError):
    """A request that is refused; carries all four keys of OpenAI's error object and the status."""

    status: ClassVar[int] = 400
    type: ClassVar[str] = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    retry_after_seconds: int | None = None


class InvalidField(RequestError):
    """A field whose value cannot be used."""

    def __init__(self, field: str, value: object, fix: str, *, code: str | None = "invalid_value") -> None:
        super().__init__(f"{field}: {quote(value)} cannot be used: {fix}")
        self.param = field
        self.code = code


class ContextLengthExceeded(RequestError):
    """Prompt and answer together cannot fit."""

    code = "context_length_exceeded"

    def __init__(self, *, prompt_tokens: int, max_tokens: int, limit_tokens: int, param: str = "messages") -> None:
        super().__init__(
            f"This model takes at most {limit_tokens} tokens; the prompt has {prompt_tokens} and "
            f"max_tokens asks for {max_tokens} more. Shorten the prompt or lower max_tokens."
        )
        self.param = param


class AuthenticationFailed(RequestError):
    """The API key is missing or wrong. The key itself is never repeated."""

    status = 401
    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("The API key is missing or wrong: send 'Authorization: Bearer <key>'.")


class ModelNotFound(RequestError):
    """The model named is not served here."""

    status = 404
    code = "model_not_found"
    param = "model"

    def __init__(self, name: object, served: tuple[str, ...]) -> None:
        super().__init__(f"The model {quote(name)} is not served here; served: {', '.join(served)}.")


class Overloaded(RequestError):
    """The queue is full."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"

    def __init__(self, *, num_queued: int, limit: int, retry_after_seconds: int) -> None:
        super().__init__(
            f"{num_queued} requests wait already and the limit is {limit}; try again in {retry_after_seconds} s."
        )
        self.retry_after_seconds = retry_after_seconds


class Loading(RequestError):
    """The engine is not up yet."""

    status = 503
    type = "service_unavailable"
    code = "loading"

    def __init__(self, *, retry_after_seconds: int) -> None:
        super().__init__(f"This engine is still loading its model; try again in {retry_after_seconds} s.")
        self.retry_after_seconds = retry_after_seconds


class Draining(RequestError):
    """The engine is going away and takes no new requests."""

    status = 503
    type = "service_unavailable"
    code = "draining"

    def __init__(self, *, retry_after_seconds: int) -> None:
        super().__init__(f"This engine takes no new requests now; try again in {retry_after_seconds} s.")
        self.retry_after_seconds = retry_after_seconds


class ConfigError(SapwoodError):
    """An option that cannot be used; the program refuses to start."""

    def __init__(self, option: str, value: object, fix: str) -> None:
        super().__init__(f"{option}: {quote(value)} cannot be used: {fix}")
        self.option = option


class CheckpointError(SapwoodError):
    """A checkpoint that cannot be read."""

    def __init__(self, where: str, problem: str, fix: str) -> None:
        super().__init__(f"{where}: {problem}. {fix}")
        self.where = where


class GenerationFailed(SapwoodError):
    """An answer that ended before its end, through no fault of the client; ``reason`` says how."""

    def __init__(self, message: str, *, reason: Literal["error", "abort"] = "error") -> None:
        super().__init__(message)
        self.reason = reason


class StepFailed(SapwoodError):
    """One step of the model raised; ``step_id`` says which."""

    def __init__(self, step_id: int, reason: str) -> None:
        super().__init__(f"step {step_id} failed: {reason}")
        self.step_id = step_id


class WorkerDied(SapwoodError):
    """The worker process ended while requests were running."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(f"The engine's worker process ended (exit code {exit_code}); this answer is incomplete.")
        self.exit_code = exit_code
