"""An engine whose every word is scripted, for tests of the HTTP API.

`FakeClient` follows `sapwood_engine.api.engine_port.Engine`. Its tokenizer works on bytes (one token a byte,
ids 0-255; 256 ends a text), so that a character can lie across tokens. By default each choice answers with
``reply``; a test may hand over scripts of its own, cut into deltas wherever it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sapwood_contract.http import (
    CachedNode,
    CachedNodes,
    EngineState,
    HotPrefix,
    HotPrefixes,
    KvEvents,
    LoadSnapshot,
    RequestList,
    RequestView,
    WarmProgress,
)
from sapwood_engine.api.engine_port import Tokenizer
from sapwood_engine.checkpoint.sampling_defaults import OPENAI_DEFAULTS, SamplingDefaults
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.warming import WarmPrefix
from sapwood_engine.service.generation import Generation, TextDelta, TokenInfo
from sapwood_metrics.exposition import TEXT, Scraped

END_ID = 256
SPECIAL_TEXT = "<|end|>"
VOCAB_SIZE = 1000


class ByteTokenizer:
    """One token a byte; `END_ID` is the end of a text."""

    vocab_size = 257
    eos_token_ids: tuple[int, ...] = (END_ID,)
    has_chat_template = True
    max_characters_per_token = 1.0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = [i for i in ids if not (skip_special_tokens and i == END_ID)]
        return b"".join(map(self.token_bytes, kept)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return SPECIAL_TEXT.encode() if token_id == END_ID else bytes([token_id % 256])

    def render_chat(
        self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **template_kwargs: Any
    ) -> str:
        """``role:content`` a line, then what a caller passed to the template."""
        lines = [f"{m['role']}:{m['content']}" for m in messages]
        lines += [f"{name}={value}" for name, value in sorted(template_kwargs.items())]
        return "\n".join([*lines, "assistant:"] if add_generation_prompt else lines)

    def bundle(self, model_revision: str) -> bytes:
        return f"a bundle of {model_revision}".encode()


@dataclass(frozen=True, slots=True)
class Say:
    """One scripted delta of choice ``index``."""

    text: str = ""
    index: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenInfo, ...] = ()
    finish: Literal["stop", "length"] | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait until the test sets ``gate``; None only gives other tasks a turn."""

    gate: asyncio.Event | None = None


Script = Sequence[Say | Pause | Exception]
"""What one generation does, in order; an exception is raised."""


def info(token_id: int, logprob: float = -0.5, top: Sequence[tuple[int, float]] = ()) -> TokenInfo:
    """A token of `ByteTokenizer` with its log-probability."""
    tokenizer = ByteTokenizer()

    def named(i: int) -> tuple[int, str, bytes]:
        data = tokenizer.token_bytes(i)
        return i, data.decode(errors="replace"), data

    return TokenInfo(*named(token_id), logprob, tuple((*named(i), value) for i, value in top))


def spoken(
    text: str, *, index: int = 0, with_logprobs: bool = False, finish: Literal["stop", "length"] = "stop"
) -> list[Say]:
    """The script that says ``text`` one character a delta, and then finishes."""
    said = []
    for character in text:
        ids = tuple(character.encode())
        logprobs = tuple(info(i, -0.1 * i, [(i, -0.1 * i), (10, -3.0)]) for i in ids) if with_logprobs else ()
        said.append(Say(character, index, ids, logprobs))
    return [*said, Say(index=index, finish=finish)]


@dataclass(frozen=True)
class FakePrefixes:
    """One prefix of two tokens is cached; what is to be computed waits for ever. Asking counts as an admin call."""

    client: FakeClient

    async def nodes(self) -> CachedNodes:
        self.client.admin_calls.append(("nodes", {}))
        return CachedNodes(self.client.model_revision, 2, (CachedNode("AAAAAAAAAAA=", 2, 1.5),), True)

    async def hot(self, *, max_prefixes: int, max_tokens: int) -> HotPrefixes:
        self.client.admin_calls.append(("hot", {"max_prefixes": max_prefixes, "max_tokens": max_tokens}))
        return HotPrefixes(self.client.model_revision, (HotPrefix((1, 2), 1.5, ((2, 0.75),)),))

    async def warm(self, prefixes: Sequence[WarmPrefix], *, is_last: bool) -> WarmProgress:
        self.client.admin_calls.append(("warm", {"prefixes": list(prefixes), "is_last": is_last}))
        return WarmProgress(self.client.state, len(prefixes), 0, 0)

    def progress(self) -> WarmProgress:
        return WarmProgress(self.client.state, 0, 0, 0)


@dataclass
class FakeClient:
    """A scripted engine. Reads like `EngineClient`; what it was asked is kept in ``asked``."""

    script: Callable[[Generation], Script] | None = None
    reply: str = "Hello there"
    num_cached_tokens: int = 0
    model_name: str = "fake/model-1"
    created: int = 1_700_000_000
    state: EngineState = "ready"
    capacity: Capacity | None = field(
        default_factory=lambda: Capacity(
            num_pages=64,
            page_size=16,
            max_context_tokens=1024,
            max_seats=8,
            max_step_tokens=64,
            vocab_size=VOCAB_SIZE,
        )
    )
    load: LoadSnapshot = field(default_factory=LoadSnapshot)
    model_revision: str = "revision"
    kv_events: KvEvents | None = None
    tokenizer: Tokenizer = field(default_factory=ByteTokenizer)
    sampling_defaults: SamplingDefaults = OPENAI_DEFAULTS
    asked: list[Generation] = field(default_factory=list)
    num_open: int = 0
    recent: tuple[RequestView, ...] = ()
    """Ended ones."""
    admin_calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    """How each call ended, as an HTTP status."""
    drained: list[float | None] = field(default_factory=list)
    all_closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, generation: Generation) -> AsyncGenerator[TextDelta, None]:
        self.asked.append(generation)
        self.num_open += 1
        self.all_closed.clear()
        try:
            counts = [0] * generation.n
            for step in self._script(generation):
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, Pause):
                    await (asyncio.sleep(0) if step.gate is None else step.gate.wait())
                    continue
                is_first = counts[step.index] == 0
                counts[step.index] += len(step.token_ids)
                yield self._delta(generation, step, counts[step.index], is_first=is_first)
        finally:
            self.num_open -= 1
            if not self.num_open:
                self.all_closed.set()

    def _script(self, generation: Generation) -> Script:
        if self.script is not None:
            return self.script(generation)
        with_logprobs = generation.sampling.num_logprobs is not None
        said: list[Say] = []
        for index in range(generation.n):
            said += spoken(self.reply, index=index, with_logprobs=with_logprobs)
        return said

    def _delta(self, generation: Generation, said: Say, num_output: int, *, is_first: bool) -> TextDelta:
        prompt_logprobs: tuple[TokenInfo | None, ...] | None = None
        if is_first and generation.sampling.num_prompt_logprobs is not None:
            prompt_logprobs = (None, *(info(i, -0.25) for i in generation.prompt_ids[1:]))
        return TextDelta(
            index=said.index,
            text=said.text,
            token_ids=said.token_ids,
            logprobs=said.logprobs,
            finish_reason=said.finish,
            stop_reason=said.stop_reason,
            num_prompt_tokens=len(generation.prompt_ids),
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=num_output,
            prompt_logprobs=prompt_logprobs,
        )

    async def admin(self, action: Literal["cache", "blocks", "flush", "check"], **arguments: Any) -> dict[str, Any]:
        self.admin_calls.append((action, arguments))
        if action == "blocks":
            return {"batch": b"\x90"}
        return {"action": action, **arguments}

    @property
    def prefixes(self) -> FakePrefixes:
        return FakePrefixes(self)

    async def abort(self, request_id: str) -> int:
        self.aborted.append(request_id)
        return sum(g.request_id == request_id for g in self.asked)

    async def drain(self, deadline_seconds: float | None = None) -> None:
        self.drained.append(deadline_seconds)
        self.state = "draining"

    def requests(self, max_ended: int) -> RequestList:
        return RequestList(self.recent[:max_ended])

    def count_call(self, status: int) -> None:
        self.ended.append(status)

    def render_metrics(self, accept: str) -> Scraped:
        return Scraped(b"# HELP sapwood_requests_total Requests ended, by how.\n", TEXT)

    def with_capacity(self, **changes: int) -> FakeClient:
        """Return this client with other figures of capacity."""
        assert self.capacity is not None
        self.capacity = replace(self.capacity, **changes)
        return self
