"""From a request's body to the prompt that prefix affinity weighs, beside the event loop where that takes long.

What cannot be read for whatever reason is no fault of the request: it is routed by load, and the engine has the last
word on it. Bounded: the bodies that are looked at, how many at once, and how long a request waits for it.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from sapwood_gateway.core.block_names import Naming, PromptSpace, prompt_of
from sapwood_gateway.core.prefix_affinity import Prompt
from sapwood_gateway.core.sessions import session_key
from sapwood_gateway.shell.call import Call

SESSION_HEADER = "X-Session-Id"
Unread = Literal["unnamed", "unreadable", "large", "late"]
"""Why a prompt is not weighed. ``unnamed``: the replica has not said yet how it names blocks."""

_MOST_BODY_BYTES = 4 * 2**20
"""A million tokens of text. Lists of ids become some ten times as large when they are read."""
_LONG_BODY_BYTES = 2_048
"""Above it a body is read in a thread: it would hold up every stream for a millisecond."""
_MOST_AT_ONCE = 2
PATIENCE_SECONDS = 0.25
"""How long a request waits for its prompt to be read; then it is routed by load."""


class ReadsPrompts(Protocol):
    """Knows the tokens of a prompt as the engines of a model's revision will see them."""

    def read(self, model_revision: str, path: str, body: Mapping[str, Any], /) -> Sequence[int] | None:
        """Return the token ids, from 0 to 2**31 - 1, of the (first) prompt in a JSON ``body`` sent to ``path``.

        None where they cannot be known. Called from several threads.
        """


class TokenIdPrompts:
    """Reads prompts that are token ids already; they mean the same to every revision."""

    def read(self, _: str, path: str, body: Mapping[str, Any]) -> Sequence[int] | None:
        prompt = body.get("prompt") if path == "/v1/completions" else None
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], list):
            prompt = prompt[0]
        if not isinstance(prompt, list):
            return None
        try:
            token_ids = array("i", prompt)
        except (TypeError, OverflowError):
            return None
        return token_ids if token_ids and min(token_ids) >= 0 else None


@dataclass(frozen=True, slots=True)
class Read:
    """A request's prompt by how replicas name its blocks; empty where it is not weighed, with the reason."""

    prompts: Mapping[Naming, Prompt]
    unread: Unread | None = None


class Prompts:
    """Reads prompts for one event loop, in threads of its own."""

    def __init__(self, reader: ReadsPrompts, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._reader = reader
        self._patience_seconds = patience_seconds
        self._threads = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="prompts")

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def of(self, call: Call, namings: Sequence[Naming]) -> Read:
        """Return the prompt of ``call`` under those of ``namings`` that it can be read for.

        Nothing is read for a service that is routed by load.
        """
        if call.service.policy != "PrefixAffinity":
            return Read({})
        if not namings:
            return Read({}, "unnamed")
        if len(call.body) > _MOST_BODY_BYTES:
            return Read({}, "large")
        session = call.request.headers.get(SESSION_HEADER)
        if len(call.body) <= _LONG_BODY_BYTES:
            return self._read(call.request.path, call.body, session, namings)
        reading = asyncio.get_running_loop().run_in_executor(
            self._threads, self._read, call.request.path, call.body, session, namings
        )
        try:
            async with asyncio.timeout(self._patience_seconds):
                return await reading
        except TimeoutError:
            return Read({}, "late")

    def _read(self, path: str, body: bytes, session: str | None, namings: Sequence[Naming]) -> Read:
        try:
            document = msgspec.json.decode(body, type=dict[str, Any])
            space = PromptSpace(*(_text(document.get(name)) for name in ("extra_key", "cache_salt")))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
            return Read({}, "unreadable")
        key = session_key(document.get("prompt_cache_key")) or session_key(session)
        read: dict[Naming, Prompt] = {}
        for naming in namings:
            token_ids = self._reader.read(naming.model_revision, path, document)
            if token_ids:
                read[naming] = prompt_of(token_ids, naming, space, key)
        return Read(read, None if read else "unreadable")


def _text(value: Any) -> str | None:
    """Raises `TypeError` for what the engine would refuse."""
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value
