"""Clients that ask for one stream after the other, as people do during a change, and remember how each ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai

_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Stream:
    """One answer, as its client saw it."""

    num_asked_tokens: int
    num_tokens: int = 0
    finish_reason: str = ""
    is_done: bool = False
    """It ended as a stream must, with ``[DONE]``."""
    problem: str = ""
    """What the client library raised, or the error event in the stream."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing was refused, lost or cut."""
        expected = (self.num_asked_tokens, "length", True, "")
        return (self.num_tokens, self.finish_reason, self.is_done, self.problem) == expected


def client_of(url: str, host: str) -> openai.OpenAI:
    """Return a client of the service that ``host`` names; it sends no request twice."""
    return openai.OpenAI(
        base_url=f"{url}/v1",
        api_key="none",
        default_headers={"Host": host},
        max_retries=0,
        timeout=_TIMEOUT_SECONDS,
    )


def ask(client: openai.OpenAI, model: str, prompt: str, num_tokens: int) -> Stream:
    """Stream one answer of exactly ``num_tokens`` tokens."""
    with client.chat.completions.with_streaming_response.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=num_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    ) as response:
        return read(response.iter_lines(), num_tokens)


def read(lines: Iterator[str], num_asked_tokens: int) -> Stream:
    """Read a stream's events to its end: the client library hides whether ``[DONE]`` came."""
    num_tokens, finish_reason, is_done, problem = 0, "", False, ""
    for line in lines:
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            is_done = True
        elif data:
            event: dict[str, Any] = json.loads(data)
            problem = problem or json.dumps(event.get("error", ""), sort_keys=True).strip('"')
            num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
            for choice in event.get("choices") or ():
                finish_reason = choice.get("finish_reason") or finish_reason
    return Stream(num_asked_tokens, num_tokens, finish_reason, is_done, problem)


def story(number: int) -> str:
    """Return what the client of that number asks for, again and again."""
    return f"Tell me a story about {number} birds."


@contextmanager
def talking(
    url: str,
    host: str,
    model: str,
    lengths: Sequence[int],
    *,
    prompt: Callable[[int], str] = story,
    pause_seconds: float = 0.0,
) -> Iterator[list[Stream]]:
    """Keep a client for each of ``lengths`` (in tokens) asking, the next stream ``pause_seconds`` after the last one.

    ``host`` names the service; ``prompt``: number of a client -> what it asks next. Yields the streams that have ended,
    complete after the block. No request is sent twice: what fails is seen.
    """
    ended: list[Stream] = []
    stop = threading.Event()

    def talk(number: int, num_tokens: int) -> None:
        with client_of(url, host) as client:
            while not stop.is_set():
                try:
                    ended.append(ask(client, model, prompt(number), num_tokens))
                except openai.OpenAIError as error:
                    ended.append(Stream(num_tokens, problem=f"{type(error).__name__}: {error}"))
                except Exception as error:  # a connection that ends within an answer has many names
                    ended.append(Stream(num_tokens, problem=repr(error)))
                stop.wait(pause_seconds)

    with ThreadPoolExecutor(len(lengths)) as threads:
        clients = [threads.submit(talk, number, length) for number, length in enumerate(lengths)]
        try:
            yield ended
        finally:
            stop.set()
    for client in clients:
        client.result()
