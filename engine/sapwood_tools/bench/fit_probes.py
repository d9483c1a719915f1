"""What `sapwood bench --fit` asks an engine, and the equations that follow from when the answers come.

Three kinds of probe: a prompt alone, of which part may be cached; streams together; and a prompt beside streams.
Prompts are token ids by chance, so that nothing is shared but what a probe shares on purpose.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from sapwood_engine.core.step_cost import chunk_keys
from sapwood_tools.bench.client import Answer, Failure
from sapwood_tools.bench.fit_rows import Equation

_TOKEN_IDS = (300, 1000)
"""Whole words or syllables in every vocabulary that is in use; single bytes and special tokens are outside."""

_LEAST_TOKENS = 8
_STREAM_TOKENS = 64
"""Prompt of a stream beside which another prompt is asked."""


class ProbeError(Exception):
    """An answer that a probe needs did not come."""


class Asks(Protocol):
    """What a probe needs of a client."""

    async def complete(self, prompt: str | Sequence[int], max_tokens: int) -> Answer | Failure:
        """Return the answer to ``prompt``, exactly ``max_tokens`` tokens long, or why there is none."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A prompt on an idle engine, whose first ``num_cached`` tokens were asked before."""

    num_tokens: int
    num_cached: int = 0

    @property
    def num_streams(self) -> int:
        return 0

    @property
    def kv_tokens(self) -> int:
        """Most that it takes of the cache, about."""
        return self.num_tokens

    @property
    def name(self) -> str:
        cached = f", {self.num_cached} cached" if self.num_cached else ""
        return f"prompt of {self.num_tokens}{cached}"


@dataclass(frozen=True, slots=True)
class Streams:
    """So many answers at once, to prompts that are all cached."""

    num_streams: int
    num_tokens: int
    num_outputs: int

    @property
    def kv_tokens(self) -> int:
        """Most that it takes of the cache, about."""
        return self.num_streams * (self.num_tokens + self.num_outputs)

    @property
    def name(self) -> str:
        return f"{self.num_streams} streams behind {self.num_tokens}"


@dataclass(frozen=True, slots=True)
class Beside:
    """A prompt while so many answers stream."""

    num_streams: int
    num_tokens: int

    @property
    def num_outputs(self) -> int:
        """Of each stream: enough to outlast the prompt where a step takes a dozen of its tokens."""
        return 16 + self.num_tokens // 12

    @property
    def kv_tokens(self) -> int:
        """Most that it takes of the cache, about."""
        return self.num_streams * (_STREAM_TOKENS + self.num_outputs) + self.num_tokens

    @property
    def name(self) -> str:
        return f"prompt of {self.num_tokens} beside {self.num_streams} streams"


Probe = Alone | Streams | Beside


def probes(*, longest_tokens: int, max_running: int, kv_tokens: int) -> list[Probe]:
    """Return what one round asks an engine that runs ``max_running`` requests at once and holds ``kv_tokens``."""
    long = longest_tokens

    def part(divisor: int) -> int:
        return max(_LEAST_TOKENS, long // divisor)

    all_: list[Probe] = [
        *(Alone(part(divisor)) for divisor in (96, 24, 12, 6, 3)),
        Alone(long * 2 // 3),
        Alone(long),
        *(Alone(*pair) for pair in ((part(6), part(8)), (long, part(2)), (long, long - part(16)))),
        *(
            Streams(n, part(divisor), 24)
            for n, divisor in ((1, 48), (1, 2), (2, 12), (4, 12), (4, 3), (8, 12), (16, 24))
        ),
        *(Beside(n, part(divisor)) for n, divisor in ((1, 6), (1, 3), (2, 12), (3, 4), (6, 24), (6, 4))),
    ]
    return [each for each in all_ if each.num_streams <= max_running and each.kv_tokens <= kv_tokens]


async def ask(probe: Probe, client: Asks, *, chunk_tokens: int, random: Random) -> Equation | None:
    """Ask ``probe`` and return what came of it; None where streams did not overlap as it wants: the engine is too fast.

    `ProbeError` where an answer fails.
    """
    match probe:
        case Alone():
            return await _alone(probe, client, chunk_tokens, random)
        case Streams():
            return await _streams(probe, client, random)
        case Beside():
            return await _beside(probe, client, random)


def _prompt(random: Random, num_tokens: int) -> list[int]:
    return random.choices(range(*_TOKEN_IDS), k=num_tokens)


async def _answer(client: Asks, prompt: Sequence[int], max_tokens: int) -> Answer:
    answer = await client.complete(prompt, max_tokens)
    if isinstance(answer, Failure):
        raise ProbeError(f"a prompt of {len(prompt)} tokens was not answered: {answer.reason}")
    return answer


async def _alone(probe: Alone, client: Asks, chunk_tokens: int, random: Random) -> Equation:
    prompt = _prompt(random, probe.num_tokens)
    if probe.num_cached:
        await _answer(client, prompt[: probe.num_cached], 1)
    answer = await _answer(client, prompt, 1)
    start = _cached(answer, probe.num_cached)
    computed = probe.num_tokens - start
    return Equation(
        probe.name,
        times(answer)[0] - answer.sent_at,
        prefill_tokens=computed,
        prefill_keys=chunk_keys(start, computed),
        steps=-(-computed // chunk_tokens),
        requests=1,
        request_tokens=probe.num_tokens,
    )


async def _streams(probe: Streams, client: Asks, random: Random) -> Equation | None:
    prompts = [_prompt(random, probe.num_tokens) for _ in range(probe.num_streams)]
    for prompt in prompts:
        await _answer(client, prompt, 1)
    answers = await asyncio.gather(*(_answer(client, prompt, probe.num_outputs) for prompt in prompts))
    # While all of them decode.
    begin, end = max(times(each)[0] for each in answers), min(each.last_at for each in answers)
    return _decoding(probe.name, answers, begin, end) if begin < end else None


async def _beside(probe: Beside, client: Asks, random: Random) -> Equation | None:
    prompts = [_prompt(random, _STREAM_TOKENS) for _ in range(probe.num_streams)]
    for prompt in prompts:
        await _answer(client, prompt, 1)
    streams = [asyncio.create_task(_answer(client, prompt, probe.num_outputs)) for prompt in prompts]
    # Until all of them decode, which takes about as long as a short prompt does.
    await _answer(client, _prompt(random, 4), 4)
    answer = await _answer(client, _prompt(random, probe.num_tokens), 1)
    answers = await asyncio.gather(*streams)
    first_at = times(answer)[0]
    if min(each.last_at for each in answers) < first_at:
        return None
    decoding = _decoding(probe.name, answers, answer.sent_at, first_at)
    return Equation(
        probe.name,
        first_at - answer.sent_at,
        prefill_tokens=probe.num_tokens,
        prefill_keys=chunk_keys(0, probe.num_tokens),
        decodes=decoding.decodes,
        decode_keys=decoding.decode_keys,
        steps=decoding.steps,
        requests=1,
        request_tokens=probe.num_tokens,
    )


def _decoding(name: str, answers: Sequence[Answer], begin: float, end: float) -> Equation:
    """What the streams decoded from ``begin`` to ``end``; a step counts by the share of it that lies between."""
    decodes = keys = steps = 0.0
    for answer in answers:
        mine = 0.0
        for index, (before, at) in enumerate(itertools.pairwise(times(answer)), start=1):
            inside = min(at, end) - max(before, begin)
            if inside > 0:
                share = inside / (at - before)
                mine += share
                keys += share * (answer.num_prompt_tokens + index)
        decodes += mine
        steps = max(steps, mine)
    return Equation(name, end - begin, decodes=decodes, decode_keys=keys, steps=steps)


def times(answer: Answer) -> list[float]:
    """Return when each event with tokens came."""
    return [answer.last_at - left for left in itertools.accumulate((*reversed(answer.gaps_seconds),), initial=0.0)][
        ::-1
    ]


def _cached(answer: Answer, expected: int) -> int:
    return expected if answer.num_cached_tokens is None else answer.num_cached_tokens
