"""One streamed completion against an OpenAI address, with the times at which its tokens arrived.

Greedy and with end-of-sequence ignored, so that every server computes the same number of tokens. What a
server does not do as asked (a status, an error event, an answer of another length) is a `Failure` with a
reason, not an exception: a benchmark counts failures and goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

_TIMEOUT_SECONDS = 600.0
_MAX_QUOTED_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion that came whole; times are seconds of one monotonic clock."""

    text: str
    sent_at: float
    first_at: float
    last_at: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int | None
    """None: the server does not say."""
    gaps_seconds: tuple[float, ...] = ()
    """Between the events that brought tokens; none where all came in one."""

    @property
    def longest_gap_seconds(self) -> float:
        """0 where all came in one event."""
        return max(self.gaps_seconds, default=0.0)

    @property
    def ttft_seconds(self) -> float:
        return self.first_at - self.sent_at

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time per token after the first; None where there is only one."""
        if self.num_output_tokens < 2:
            return None
        return (self.last_at - self.first_at) / (self.num_output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Failure:
    """A completion that did not come as asked."""

    reason: str


@dataclass(slots=True)
class _Stream:
    """What has arrived of one answer."""

    text: list[str] = field(default_factory=list)
    opened_at: float | None = None
    first_text_at: float | None = None
    last_at: float | None = None
    gaps_seconds: list[float] = field(default_factory=list)
    usage: dict[str, Any] | None = None

    def take(self, event: dict[str, Any], now: float) -> None:
        """Add one event's text, its time and its usage."""
        if event.get("usage"):
            self.usage = event["usage"]
        for choice in event.get("choices") or ():
            self.opened_at = now if self.opened_at is None else self.opened_at
            if self.last_at is not None:
                self.gaps_seconds.append(now - self.last_at)
            self.last_at = now
            if choice.get("text"):
                self.text.append(choice["text"])
                self.first_text_at = now if self.first_text_at is None else self.first_text_at

    @property
    def first_at(self) -> float | None:
        """When text began; an answer of special tokens alone has none, and then its first event counts."""
        return self.opened_at if self.first_text_at is None else self.first_text_at


class Client:
    """Asks one server; make it with `connect`."""

    def __init__(self, session: aiohttp.ClientSession, model: str) -> None:
        self._session = session
        self.model = model

    async def complete(self, prompt: str | Sequence[int], max_tokens: int) -> Answer | Failure:
        """Ask for exactly ``max_tokens`` tokens after ``prompt``, text or ids, and read the stream to its end."""
        body = {
            "model": self.model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sent_at = time.perf_counter()
        stream = _Stream()
        try:
            async with self._session.post("v1/completions", json=body) as response:
                if response.status != 200:
                    return Failure(f"status {response.status}: {_short(await response.text())}")
                async for event in events(response.content):
                    if "error" in event:
                        return Failure(f"error event: {_short(json.dumps(event['error']))}")
                    stream.take(event, time.perf_counter())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return Failure(_short(repr(error)))
        return _judge(stream, sent_at, max_tokens)


def _judge(stream: _Stream, sent_at: float, max_tokens: int) -> Answer | Failure:
    usage = stream.usage
    if usage is None:
        return Failure("no usage in the stream")
    if stream.first_at is None or stream.last_at is None:
        return Failure("no choice in the stream")
    if usage["completion_tokens"] != max_tokens:
        return Failure(f"{usage['completion_tokens']} tokens where {max_tokens} were asked for")
    return Answer(
        text="".join(stream.text),
        sent_at=sent_at,
        first_at=stream.first_at,
        last_at=stream.last_at,
        num_prompt_tokens=usage["prompt_tokens"],
        num_output_tokens=usage["completion_tokens"],
        num_cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        gaps_seconds=tuple(stream.gaps_seconds),
    )


async def events(lines: AsyncIterable[bytes]) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON of each server-sent event up to ``[DONE]``; `ValueError` on what is not JSON.

    Events here are one ``data:`` line each, as the OpenAI API sends them.
    """
    async for line in lines:
        name, _, value = line.strip().partition(b":")
        if name != b"data":
            continue
        if value.strip() == b"[DONE]":
            return
        yield json.loads(value)


@asynccontextmanager
async def connect(url: str, *, model: str | None = None, api_key: str | None = None) -> AsyncIterator[Client]:
    """Open connections to ``url``; ``model`` None takes the first one that ``/v1/models`` lists.

    Raises `aiohttp.ClientError` where nobody answers there.
    """
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    session = aiohttp.ClientSession(
        base_url=url.rstrip("/") + "/",
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS),
        # A connection for each request: servers drop idle ones at moments of their own, and a request that is
        # being sent just then would count as failed.
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        read_bufsize=1 << 20,
        raise_for_status=False,
    )
    async with session:
        yield Client(session, model if model is not None else await _first_model(session))


async def _first_model(session: aiohttp.ClientSession) -> str:
    async with session.get("v1/models", raise_for_status=True) as response:
        name: str = (await response.json(content_type=None))["data"][0]["id"]
        return name


def _short(text: str) -> str:
    return text if len(text) <= _MAX_QUOTED_CHARACTERS else text[:_MAX_QUOTED_CHARACTERS] + "…"
