"""One call from its generations to its answer, whole or streamed; what chat and text completions share.

The whole answer and the stream are made of the same deltas by the same writer, so that they cannot differ.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec
from fastapi import Request, Response

from sapwood_engine.api.answers import PromptTokensDetails, Unset, Usage
from sapwood_engine.api.deltas import ClientGone, DeltaFeed, until_gone
from sapwood_engine.api.engine_port import Engine
from sapwood_engine.api.errors import CLIENT_CLOSED_REQUEST, json_response
from sapwood_engine.api.sse import EventStream, comment, event
from sapwood_engine.api.traced import trace_of
from sapwood_engine.service.generation import Generation, TextDelta
from sapwood_text.sampling_fields import GenerationFields


class Heading:
    """What every answer and chunk of one call repeats."""

    def __init__(self, engine: Engine, body: GenerationFields, prefix: str) -> None:
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.model = engine.model_name
        wants_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self.chunk_usage: Unset | None = None if wants_usage else msgspec.UNSET
        """What a chunk other than the last says of usage."""


class Writer(Protocol):
    """Turns deltas into the answer of one endpoint. ``index`` counts choices over all prompts."""

    heading: Heading

    def take(self, index: int, delta: TextDelta) -> None:
        """Keep ``delta`` for `whole`."""
        ...

    def whole(self, usage: Usage) -> Any:
        """Return the answer made of everything taken."""
        ...

    def chunks(self, index: int, delta: TextDelta) -> Iterable[Any]:
        """Return the chunks that ``delta`` becomes in a stream."""
        ...

    def usage_chunk(self, usage: Usage) -> Any:
        """Return the chunk that ends a stream whose client asked for usage."""
        ...


class UsageTally:
    """Counts tokens while deltas pass by; prompts count once, however many choices they have."""

    def __init__(self, *, hides_cached: bool) -> None:
        """``hides_cached``: what the prefix cache held is not told, for others' prompts would show in it."""
        self._hides_cached = hides_cached
        self._prompts: dict[int, tuple[int, int]] = {}
        self._outputs: dict[tuple[int, int], int] = {}

    def count(self, place: int, delta: TextDelta) -> None:
        """Note one delta of the prompt at ``place``."""
        if delta.index == 0:
            self._prompts[place] = (delta.num_prompt_tokens, delta.num_cached_tokens)
        self._outputs[place, delta.index] = delta.num_output_tokens

    def usage(self) -> Usage:
        """Return the sums so far."""
        num_prompt = sum(num for num, _ in self._prompts.values())
        num_output = sum(self._outputs.values())
        num_cached = sum(num for _, num in self._prompts.values())
        details = None if self._hides_cached else PromptTokensDetails(num_cached)
        return Usage(num_prompt, num_output, num_prompt + num_output, details)


async def answer(
    request: Request, engine: Engine, generations: Sequence[Generation], writer: Writer, *, stream: bool
) -> Response:
    """Run ``generations`` and return the response; refusals are raised before a stream begins."""
    trace = trace_of(request.scope)
    if trace is not None:
        trace.asked(generations, stream=stream)
        generations = [replace(each, trace=trace) for each in generations]
    feed = DeltaFeed(engine, generations)
    tally = UsageTally(hides_cached=request.state.trusted.hides_cached_tokens)
    streaming = False
    try:
        num_choices = generations[0].n
        if not stream:
            return json_response(await until_gone(request.receive, _collect(feed, writer, tally, num_choices)))
        first = await until_gone(request.receive, feed.next_batch())
        batches = _batches(first, feed, writer, tally, num_choices, is_tenants=request.state.trusted.tenant is not None)
        response = EventStream(batches, feed)
        streaming = True
        return response
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        if not streaming:
            await feed.close()


async def _collect(feed: DeltaFeed, writer: Writer, tally: UsageTally, num_choices: int) -> Any:
    while batch := await feed.next_batch():
        for place, delta in batch:
            tally.count(place, delta)
            writer.take(place * num_choices + delta.index, delta)
    return writer.whole(tally.usage())


async def _batches(
    batch: list[tuple[int, TextDelta]],
    feed: DeltaFeed,
    writer: Writer,
    tally: UsageTally,
    num_choices: int,
    *,
    is_tenants: bool,
) -> AsyncIterator[bytes]:
    while batch:
        events: list[bytes] = []
        for place, delta in batch:
            tally.count(place, delta)
            events += map(event, writer.chunks(place * num_choices + delta.index, delta))
        yield b"".join(events)
        batch = await feed.next_batch()
    if writer.heading.chunk_usage is None:
        yield event(writer.usage_chunk(tally.usage()))
    elif is_tenants:
        yield comment(tally.usage())  # the gateway counts what its tenants use, whether or not they want to know
