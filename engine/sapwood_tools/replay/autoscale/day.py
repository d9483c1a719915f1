"""A day of requests made by chance: hours that are busy and idle, bursts, and prompts that begin alike.

Sessions come as a Poisson process whose rate follows the hour. Each begins with one of some system prompts (few are
used much), adds a document or a question, and goes on for some turns, each of which begins with all before it, until
the model's context is full. As in real traces all share their first block, and a block that a turn fills in part is
another one in the next turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

from sapwood_tools.replay.trace import BLOCK_TOKENS, TraceRequest, request

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """What is drawn; the same seed draws the same day."""

    seed: int = 0
    hours: float = 24.0
    requests_per_second: float = 0.7
    """On the average, bursts aside."""
    night_share: float = 0.1
    """Of the busiest hour's rate, in the idlest."""
    num_bursts: int = 10
    burst_growth: float = 0.5
    """Most that a burst adds, as a share of the rate at the time."""
    burst_seconds: float = 1200.0
    """On the average."""
    burst_rise_seconds: float = 240.0
    """Until a burst is at its height, and as long until it is over."""
    context_tokens: int = 8_192
    """Most tokens of a prompt with its answer: a document is cut so that it fits with a block to spare, and a session
    that has no room left ends."""
    num_system_prompts: int = 24
    mean_document_tokens: float = 2_500.0
    mean_turn_tokens: float = 600.0
    mean_turns: float = 2.5
    mean_gap_seconds: float = 300.0
    """Between two turns of a session."""
    mean_output_tokens: float = 300.0


@dataclass(frozen=True, slots=True)
class Burst:
    """More than the hour has, between two times."""

    begin: float
    end: float
    growth: float


def make_day(day: Day) -> list[TraceRequest]:
    """Return the requests of the day in order of arrival, from time 0 on."""
    random = Random(day.seed)
    turns = sorted(_turns(day, random), key=lambda turn: turn[0])
    return [request(*turn) for turn in turns]


def rate(day: Day, bursts: list[Burst], at: float) -> float:
    """Return how many times the busiest hour's rate there is at ``at``, bursts included."""
    hour = at / _HOUR * 24 / day.hours
    # Two humps, before noon and in the evening, over a night that is idlest at four.
    wave = 0.75 * math.exp(-(((hour - 11) / 3.2) ** 2)) + math.exp(-(((hour - 19) / 3.6) ** 2))
    share = day.night_share + (1 - day.night_share) * wave
    return share * (1 + sum(burst.growth * _height(day, burst, at) for burst in bursts))


def draw_bursts(day: Day, random: Random) -> list[Burst]:
    """Return the bursts of the day."""
    bursts = []
    for _ in range(day.num_bursts):
        begin = random.uniform(0, day.hours * _HOUR)
        seconds = 2 * day.burst_rise_seconds + random.expovariate(1 / day.burst_seconds)
        bursts.append(Burst(begin, begin + seconds, random.uniform(0.3, 1.0) * day.burst_growth))
    return bursts


def _height(day: Day, burst: Burst, at: float) -> float:
    return max(0.0, min(1.0, (at - burst.begin) / day.burst_rise_seconds, (burst.end - at) / day.burst_rise_seconds))


def _turns(day: Day, random: Random) -> Iterator[tuple[float, int, int, tuple[int, ...]]]:
    """Yield time, tokens, tokens of the answer and blocks of every turn that begins within the day."""
    bursts = draw_bursts(day, random)
    end = day.hours * _HOUR
    steps = [rate(day, bursts, at) for at in range(0, int(end), 60)]
    busiest = (
        day.requests_per_second / day.mean_turns * len(steps) / sum(rate(day, [], at) for at in range(0, int(end), 60))
    )
    most = max(steps) * 1.01
    ids = count(1)
    prompts = [[0, *(next(ids) for _ in range(random.randint(0, 5)))] for _ in range(day.num_system_prompts)]
    weights = [1 / rank for rank in range(1, day.num_system_prompts + 1)]
    at = 0.0
    while True:
        at += random.expovariate(busiest * most)
        if at >= end:
            return
        if random.random() * most < rate(day, bursts, at):
            blocks = random.choices(prompts, weights)[0]
            for turn in _session(day, random, at, blocks, ids):
                if turn[0] < end:
                    yield turn


def _session(
    day: Day, random: Random, at: float, blocks: list[int], ids: count[int]
) -> Iterator[tuple[float, int, int, tuple[int, ...]]]:
    most_tokens = day.context_tokens - (len(blocks) + 1) * BLOCK_TOKENS
    new_tokens = min(_length(random, day.mean_document_tokens), most_tokens)
    while True:
        whole, rest = divmod(new_tokens, BLOCK_TOKENS)
        blocks = [*blocks, *(next(ids) for _ in range(whole))]
        num_tokens = len(blocks) * BLOCK_TOKENS + rest
        if num_tokens >= day.context_tokens:
            return
        output_tokens = 1 + int(random.expovariate(1 / day.mean_output_tokens))
        output_tokens = min(output_tokens, day.context_tokens - num_tokens)
        yield at, num_tokens, output_tokens, (*blocks, next(ids)) if rest else tuple(blocks)
        if random.random() < 1 / day.mean_turns:
            return
        at += random.expovariate(1 / day.mean_gap_seconds)
        new_tokens = rest + output_tokens + _length(random, day.mean_turn_tokens)


def _length(random: Random, mean: float) -> int:
    """Draw from a log-normal distribution of ``mean``, as prompts' lengths are spread."""
    spread = 1.0
    return max(16, min(100_000, round(random.lognormvariate(math.log(mean) - spread**2 / 2, spread))))
