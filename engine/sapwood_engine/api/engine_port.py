"""What the API needs of the engine; `sapwood_engine.service.client.EngineClient` is it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal, Protocol

from sapwood_contract.http import (
    CachedNodes,
    EngineState,
    HotPrefixes,
    KvEvents,
    LoadSnapshot,
    RequestList,
    WarmProgress,
)
from sapwood_engine.checkpoint.sampling_defaults import SamplingDefaults
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.warming import WarmPrefix
from sapwood_engine.service.generation import Generation, TextDelta
from sapwood_metrics.exposition import Scraped


class Tokenizer(Protocol):
    """Text to ids and back; pure, safe to call from another thread."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def has_chat_template(self) -> bool: ...

    @property
    def max_characters_per_token(self) -> float:
        """A text of more than ``n`` times this many characters certainly has more than ``n`` tokens."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def render_chat(
        self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **template_kwargs: Any
    ) -> str:
        """Return the prompt; `UnusableText` naming ``messages`` when the template refuses."""
        ...

    def bundle(self, model_revision: str) -> bytes:
        """Return what `sapwood_text.prompt_reader.PromptReader` makes the same ids with."""
        ...


class Prefixes(Protocol):
    """Of an engine's cache; each raises `Loading` while it loads, and `WorkerDied`."""

    async def nodes(self) -> CachedNodes:
        """Return the nodes of most worth."""
        ...

    async def hot(self, *, max_prefixes: int, max_tokens: int) -> HotPrefixes:
        """Return the beginnings of prompts of most worth."""
        ...

    async def warm(self, prefixes: Sequence[WarmPrefix], *, is_last: bool) -> WarmProgress:
        """Have ``prefixes`` computed while nobody else has work; `Draining` where nothing more is."""
        ...

    def progress(self) -> WarmProgress:
        """Return how far it is with that."""
        ...


class Engine(Protocol):
    """One served model."""

    @property
    def model_name(self) -> str: ...

    @property
    def created(self) -> int:
        """Unix seconds of the start."""
        ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """What holds for the sampling fields that a request leaves out."""
        ...

    @property
    def capacity(self) -> Capacity | None:
        """None until the weights are loaded."""
        ...

    @property
    def state(self) -> EngineState: ...

    @property
    def load(self) -> LoadSnapshot: ...

    @property
    def model_revision(self) -> str:
        """Empty until the checkpoint is found."""
        ...

    @property
    def kv_events(self) -> KvEvents | None:
        """Where cached blocks are published; None where or while they are not."""
        ...

    def generate(self, generation: Generation) -> AsyncGenerator[TextDelta, None]:
        """Deltas of all choices, interleaved; closing it early aborts what still runs.

        A `RequestError` comes before the first delta, `WorkerDied` or `GenerationFailed` at any time.
        """
        ...

    @property
    def prefixes(self) -> Prefixes: ...

    async def admin(self, action: Literal["cache", "blocks", "flush", "check"], **arguments: Any) -> dict[str, Any]: ...

    async def abort(self, request_id: str) -> int:
        """Return how many running choices were told to stop."""
        ...

    async def drain(self, deadline_seconds: float | None = None) -> None:
        """Take no new requests; return when the running ones have ended, or at the deadline; None: the engine's own."""
        ...

    def requests(self, max_ended: int) -> RequestList:
        """Return the calls that wait or run, and the ``max_ended`` that ended last."""
        ...

    def count_call(self, status: int) -> None:
        """Note that a call of the OpenAI API has ended, as `contract.metrics.HTTP_CODES` says."""
        ...

    def render_metrics(self, accept: str) -> Scraped:
        """Return the metrics in the form that an Accept header of ``accept`` asks for."""
        ...
