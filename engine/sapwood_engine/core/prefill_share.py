"""How much of a step prefills take, and which prompt gets how much of that.

While somebody decodes, as many tokens are prefilled beside as the measured costs let into the target for the time
between two tokens. Keeps these rules: prefills have at least `LEAST_SHARE` of the time, whatever the target; the oldest
who prefills always goes on, with half of that; the rest goes to those who are the nearest to their first token, so that
nobody short waits for somebody long, and of equals one is done before the next begins. Decodes are never left out of a
step: half of them take more than half the time, so that all would wait longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sapwood_engine.core.step_cost import StepCosts

LEAST_CHUNK_TOKENS = 32
"""A smaller part of a longer prompt is not worth its turn: products and attention are computed in tiles of rows."""
LEAST_SHARE = 0.25
"""Where decodes alone come near the target or beyond, prefills take at most four times as long as if nobody decoded,
and streams go on three quarters as fast as without them."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """What one sequence could have computed in a step."""

    start: int
    """Position of the first token."""
    num_left: int
    """Known tokens from there on."""
    chunk_tokens: int
    """Most of these in one step; 0 where the sequence must sit it out."""


def prefill_allowance(decode_seconds: float, target_seconds: float) -> float:
    """Return the seconds of prefill in a step whose decodes alone should take ``decode_seconds``."""
    return max(target_seconds - decode_seconds, decode_seconds * LEAST_SHARE / (1.0 - LEAST_SHARE))


def share_prefill(
    prefills: Sequence[Prefill], costs: StepCosts, *, max_tokens: int, seconds: float = math.inf
) -> list[int]:
    """Return how many tokens each of ``prefills``, the oldest first, gets of ``max_tokens`` >= 1 and ``seconds``.

    The oldest with a chunk to compute gets `LEAST_CHUNK_TOKENS` even beyond ``seconds``; another gets as many, or its
    whole chunk, or none.
    """
    tokens = [0] * len(prefills)
    waiting = [index for index, prefill in enumerate(prefills) if prefill.chunk_tokens]
    if not waiting:
        return tokens
    oldest = waiting[0]
    kept_tokens = min(prefills[oldest].chunk_tokens, -(-max_tokens // 2))
    kept_seconds = min(costs.prefill_seconds(prefills[oldest].start, prefills[oldest].chunk_tokens), seconds / 2)
    for index in sorted(waiting, key=lambda index: prefills[index].num_left):
        prefill = prefills[index]
        if index == oldest:
            kept_tokens, kept_seconds = 0, 0.0
        most = min(prefill.chunk_tokens, max_tokens - kept_tokens)
        least = min(most, LEAST_CHUNK_TOKENS)
        num_tokens = costs.affordable_tokens(prefill.start, max(0.0, seconds - kept_seconds), most=most)
        if num_tokens < least:
            num_tokens = least if index == oldest else 0
        tokens[index] = num_tokens
        max_tokens -= num_tokens
        seconds -= costs.prefill_seconds(prefill.start, num_tokens)
    return tokens
