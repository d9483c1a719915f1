"""Runs one workload against one server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from sapwood_tools.bench import workloads
from sapwood_tools.bench.client import Answer, Failure
from sapwood_tools.bench.workloads import Completion, Conversation, Item, Workload


class Asks(Protocol):
    """What a workload needs of a client."""

    async def complete(self, prompt: str, max_tokens: int) -> Answer | Failure:
        """Return the answer to ``prompt``, exactly ``max_tokens`` tokens long, or why there is none."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one workload."""

    workload: str
    variant: int
    seconds: float
    """From the first request sent to the last answer read."""
    answers: tuple[Answer, ...]
    failures: tuple[Failure, ...]
    num_other_lengths: int
    """Prompts that the server counted differently from the file: its tokenizer or template is another one."""


async def run(workload: Workload, client: Asks) -> Outcome:
    """Start the items in order, ``workload.concurrency`` of them under way at once, and wait for all."""
    waiting = iter(workload.items)
    answers: list[Answer] = []
    failures: list[Failure] = []
    started = time.perf_counter()
    # One iterator shared by all: whoever is free takes the next item.
    lanes = [_lane(waiting, client, answers, failures) for _ in range(workload.concurrency)]
    num_other_lengths = sum(await asyncio.gather(*lanes))
    seconds = time.perf_counter() - started
    return Outcome(workload.name, workload.variant, seconds, tuple(answers), tuple(failures), num_other_lengths)


async def _lane(waiting: Iterator[Item], client: Asks, answers: list[Answer], failures: list[Failure]) -> int:
    num_other_lengths = 0
    for item in waiting:
        for result in await _ask(item, client):
            if isinstance(result, Failure):
                failures.append(result)
                continue
            answers.append(result)
            if isinstance(item, Completion) and result.num_prompt_tokens != item.prompt_tokens:
                num_other_lengths += 1
    return num_other_lengths


async def _ask(item: Item, client: Asks) -> list[Answer | Failure]:
    match item:
        case Completion():
            return [await client.complete(item.prompt, item.max_tokens)]
        case Conversation():
            return await _converse(item, client)


async def _converse(item: Conversation, client: Asks) -> list[Answer | Failure]:
    """Ask turn after turn; the first failure ends the conversation, its history would be another one."""
    results: list[Answer | Failure] = []
    history = workloads.opening(item.system)
    for text in item.turns:
        prompt = history + workloads.question(text)
        result = await client.complete(prompt, item.max_tokens)
        results.append(result)
        if isinstance(result, Failure):
            break
        history = prompt + workloads.answer(result.text)
    return results
