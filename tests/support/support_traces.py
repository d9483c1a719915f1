"""Traces made by chance, in the shape of real ones."""

from __future__ import annotations

from random import Random

from sapwood_tools.replay.trace import BLOCK_TOKENS, TraceRequest, request


def conversations(*, num_conversations: int, seconds_between: float, seed: int = 0) -> list[TraceRequest]:
    """Conversations of one to six turns that share their first block and nothing else, in random order.

    As in real traces a block that a turn fills in part is another one in the turn that goes on from there.
    """
    random = Random(seed)
    ids = iter(range(1, 1_000_000))
    turns: list[tuple[float, list[int]]] = []
    for _ in range(num_conversations):
        at, blocks = random.random() * num_conversations, [0]
        for _ in range(random.randint(1, 6)):
            blocks = [*blocks, *(next(ids) for _ in range(random.randint(1, 12)))]
            turns.append((at, [*blocks, next(ids)]))
            at += random.expovariate(1 / 30)
    turns.sort(key=lambda turn: turn[0])
    return [
        request(number * seconds_between, len(blocks) * BLOCK_TOKENS - random.randrange(BLOCK_TOKENS), 100, (*blocks,))
        for number, (_, blocks) in enumerate(turns)
    ]
