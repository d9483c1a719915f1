"""From a request's body to the prompt that prefix affinity weighs, beside the event loop where that takes long.

What cannot be read for whatever reason is no fault of the request: it is routed by load, and the engine has the last
word on it. Bounded: the bodies that are looked at, how many at once, and how long a request waits for it.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from sapwood_gateway.core.block_names import Naming, PromptSpace, prompt_of
from sapwood_gateway.core.prefix_affinity import Prompt
from sapwood_gateway.core.reading_turns import ServedModel
from sapwood_gateway.core.sessions import session_key
from sapwood_gateway.shell.call import Call

SESSION_HEADER = "X-Session-Id"
Unread = Literal["unnamed", "unreadable", "large", "late"]
"""Why a prompt is not weighed. ``unnamed``: the replica has not said yet how it names blocks."""

_MOST_BODY_BYTES = 4 * 2**20
"""A million tokens of text. Lists of ids become some ten times as large when they are read."""
_LONG_BODY_BYTES = 2_048
"""Above it a body is looked at in a thread: it would hold up every stream for a millisecond."""
_MOST_AT_ONCE = 2
PATIENCE_SECONDS = 0.25
"""How long a request waits for its prompt to be read; then it is routed by load."""
_Found = TypeVar("_Found")


class ReadsTexts(Protocol):
    """Knows the tokens of a text or a chat as the engines of a model will see them."""

    async def read(self, model: ServedModel, path: str, body: bytes, tenant: str | None, /) -> Sequence[int] | Unread:
        """Return the token ids, from 0 to 2**31 - 1, of the (first) prompt in a JSON ``body`` sent to ``path``.

        ``tenant``: whose it is. Otherwise why they are not known.
        """


class NoTexts:
    """Reads none: without a tokenizer there are prompts of token ids alone."""

    async def read(self, _model: ServedModel, _path: str, _body: bytes, _tenant: str | None, /) -> Unread:
        return "unreadable"


@dataclass(frozen=True, slots=True)
class Read:
    """A request's prompt by how replicas name its blocks; empty where it is not weighed, with the reason."""

    prompts: Mapping[Naming, Prompt]
    unread: Unread | None = None


class _Body(msgspec.Struct):
    """All that is looked at here; of what the engine would refuse nothing is guessed."""

    prompt: msgspec.Raw = msgspec.Raw(b"")
    prompt_cache_key: Any = None
    extra_key: str | None = None
    cache_salt: str | None = None


class Prompts:
    """Reads prompts for one event loop: of token ids itself, in threads of its own, others by a reader of texts."""

    def __init__(self, texts: ReadsTexts, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._texts = texts
        self._patience_seconds = patience_seconds
        self._threads = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="prompts")

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def of(self, call: Call, namings: Sequence[Naming], *, tenant: str | None = None) -> Read:
        """Return the prompt of ``call`` under those of ``namings`` that it can be read for; ``tenant``: whose it is.

        Nothing is read for a service that is routed by load.
        """
        if call.service.policy != "PrefixAffinity":
            return Read({})
        if not namings:
            return Read({}, "unnamed")
        if len(call.body) > _MOST_BODY_BYTES:
            return Read({}, "large")
        try:
            async with asyncio.timeout(self._patience_seconds):
                return await self._read(call, namings, tenant)
        except TimeoutError:
            return Read({}, "late")

    async def _read(self, call: Call, namings: Sequence[Naming], tenant: str | None) -> Read:
        path, is_long = call.request.path, len(call.body) > _LONG_BODY_BYTES
        try:
            body, given_ids = await self._aside(is_long, partial(_look_at, call.body, path))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return Read({}, "unreadable")
        space = PromptSpace(body.extra_key, body.cache_salt, tenant)
        given = (body.prompt_cache_key, call.request.headers.get(SESSION_HEADER))
        session = next(filter(None, (session_key(each, tenant=call.tenant.id) for each in given)), None)
        read: dict[Naming, Prompt] = {}
        unread: Unread = "unreadable"
        for naming in namings:
            token_ids: Sequence[int] | Unread = given_ids
            if not given_ids:
                model = ServedModel(call.service.key, naming.model_revision)
                token_ids = await self._texts.read(model, path, call.body, tenant)
            if isinstance(token_ids, str):
                unread = token_ids
            else:
                read[naming] = await self._aside(is_long, partial(prompt_of, token_ids, naming, space, session))
        return Read(read, None if read else unread)

    async def _aside(self, is_long: bool, work: Callable[[], _Found]) -> _Found:
        """Return what ``work`` returns, done in a thread where it takes long."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work) if is_long else work()


def _look_at(data: bytes, path: str) -> tuple[_Body, Sequence[int]]:
    """Return a body, and the ids of its (first) prompt where it gives any; raises where it cannot be read."""
    body = msgspec.json.decode(data, type=_Body)
    is_list = path == "/v1/completions" and bytes(memoryview(body.prompt)[:1]) == b"["
    return body, _token_ids(body.prompt) if is_list else ()


def _token_ids(prompt: msgspec.Raw) -> Sequence[int]:
    """Return the ids, from 0 to 2**31 - 1, of a list of ids or of the first of such lists; none where it is neither."""
    try:
        given: Any = msgspec.json.decode(prompt, type=list[int | list[int]])
        ids = array("i", given[0] if given and isinstance(given[0], list) else given)
    except (msgspec.ValidationError, TypeError, OverflowError):
        return ()
    return ids if ids and min(ids) >= 0 else ()
