"""The engine's miss-ratio curve of a trace, beside LRU caches of each size simulated directly.

One cache of the engine's own serves the trace and measures its curve, as an engine would. What it says of a size is
then compared with `one_cache`, which has nothing of the engine's code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sapwood_contract.curve import Curve, hit_ratio_at
from sapwood_engine.core.miss_ratio import MissRatio
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_tools.replay.engine import through_cache
from sapwood_tools.replay.one_cache import cached_tokens
from sapwood_tools.replay.trace import NAMESPACE, PAGE_SIZE, TraceRequest

MULTIPLES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, math.inf)
"""Of the cache's capacity."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One capacity; ratios of prompt tokens, from 0 to 1."""

    capacity_blocks: int | None
    """None for any number."""
    simulated: float
    curve: float

    def to_json(self) -> str:
        """Return the comparison as one line of JSON."""
        return json.dumps({name: round(v, 5) if isinstance(v, float) else v for name, v in asdict(self).items()})


def measured_curve(requests: Sequence[TraceRequest], capacity_blocks: int, *, sample_rate: float) -> Curve:
    """Return the curve of a cache of ``capacity_blocks`` blocks that has served all ``requests``, none of them faded.

    Raises `engine.CacheTooSmall` where one does not fit.
    """
    cache = PrefixCache(num_pages=capacity_blocks, page_size=PAGE_SIZE)
    measured = MissRatio(
        num_pages=capacity_blocks,
        page_size=PAGE_SIZE,
        token_bytes=cache.keys.unit_bytes,
        sample_rate=sample_rate,
        halve_after_requests=len(requests) + 1,
    )
    for request in requests:
        num_slots = len(request.key) // cache.keys.unit_bytes
        num_cached = through_cache(cache, request)
        trail = measured.admitted(
            NAMESPACE, request.key, num_tokens=num_slots, num_cached=num_cached, most_cached=num_slots - 1
        )
        measured.ended(trail, request.key)
    return measured.curve()


def compare(requests: Sequence[TraceRequest], curve: Curve) -> list[Compared]:
    """Return what ``curve`` says of `MULTIPLES` of its capacity, and what such caches hit of ``requests``."""
    num_tokens = sum(request.prompt.num_tokens for request in requests)
    compared = []
    for multiple in MULTIPLES:
        blocks = None if multiple == math.inf else round(multiple * curve.capacity_tokens / PAGE_SIZE)
        simulated = cached_tokens(requests, blocks) / num_tokens
        compared.append(Compared(blocks, simulated, hit_ratio_at(curve, multiple * curve.capacity_tokens)))
    return compared


def table(compared: Sequence[Compared], curve: Curve) -> str:
    """Return the comparison as text, with mean and largest error in points."""
    errors = [100 * (each.curve - each.simulated) for each in compared]
    lines = ["| blocks | simulated | curve | error |", "|---|---|---|---|"]
    for each, error in zip(compared, errors, strict=True):
        blocks = "any" if each.capacity_blocks is None else str(each.capacity_blocks)
        lines.append(f"| {blocks} | {each.simulated:.2%} | {each.curve:.2%} | {error:+.2f} |")
    mean = sum(map(abs, errors)) / len(errors)
    lines.append("")
    lines.append(f"Error in points: {mean:.2f} on average, {max(map(abs, errors)):.2f} at most.")
    lines.append(
        f"{curve.sample_rate:.1%} of the blocks sampled, {curve.num_samples} marks counted;"
        f" working set {curve.working_set_tokens / PAGE_SIZE:.0f} blocks;"
        f" regret {curve.regret_tokens / PAGE_SIZE:.0f} blocks."
    )
    return "\n".join(lines)
