"""What a log says of an exception: its kind and its frames, without their variables; its message where that is safe.

An exception that nobody foresaw may quote what it could not digest, which may be a client's. So of exceptions that
come from anywhere but Sapwood and the system a program that holds prompts or keys logs no message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TextIO

from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import ExcInfo

_OURS = "sapwood"
_HIDDEN = "(not logged: it may quote a request)"


class Faults:
    """Describes exceptions for JSON, and for people."""

    def __init__(self, *, hides_messages: bool) -> None:
        self._hides_messages = hides_messages
        self._transform = ExceptionDictTransformer(show_locals=False)

    def __call__(self, exc_info: ExcInfo) -> list[dict[str, Any]]:
        """Return the exception and what led to it, one after the other."""
        stacks = self._transform(exc_info)
        if self._hides_messages:
            # What a group has told of is not told of again: the stacks may be fewer.
            for stack, error in zip(stacks, _chain(exc_info[1]), strict=False):
                if not _is_safe(error):
                    _hide(stack)
        return stacks

    def write(self, stream: TextIO, exc_info: ExcInfo) -> None:
        """Write the same as text, the cause first."""
        stream.writelines(_lines(self(exc_info)))


def _lines(stacks: list[dict[str, Any]]) -> Iterator[str]:
    for stack in reversed(stacks):
        for group in stack["exceptions"]:
            yield from _lines(group)
        for frame in stack["frames"]:
            yield f"  {frame['filename']}:{frame['lineno']} in {frame['name']}\n"
        yield f"{stack['exc_type']}: {stack['exc_value']}\n"


def _is_safe(error: BaseException) -> bool:
    return isinstance(error, OSError | AssertionError) or type(error).__module__.partition(".")[0].startswith(_OURS)


def _hide(stack: dict[str, Any]) -> None:
    stack["exc_value"], stack["exc_notes"] = _HIDDEN, []
    for group in stack["exceptions"]:
        for inner in group:
            _hide(inner)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error`` and what led to it, as `ExceptionDictTransformer` lists them."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        yield error
        cause, context = error.__cause__, error.__context__
        if cause is not None and cause.__traceback__:
            error = cause
        elif context is not None and context.__traceback__ and not error.__suppress_context__:
            error = context
