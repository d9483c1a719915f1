"""What a replay says: a row for each policy and number of replicas, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sapwood_tools.replay.simulate import Tally


@dataclass(frozen=True, slots=True)
class Row:
    """One policy over one number of replicas; shares and ratios from 0 on, tokens of the trace."""

    policy: str
    replicas: int
    hit_ratio: float
    """Prompt tokens found cached, of all."""
    one_cache_hit_ratio: float
    """The same of one LRU cache of all replicas' sizes together."""
    load_max_to_mean: float
    """Of the tokens that each replica computed over the whole trace, prompts' and answers'."""
    requests_max_to_mean: float
    recomputed_tokens: int
    """Prompt tokens that were computed although some replica had computed them before."""
    foreseen_ratio: float | None
    """Requests that found as much as the gateway expected, give or take a block; None: it expected nothing."""
    ttft_mean_seconds: float
    """At the speed assumed, as are all times."""
    ttft_p99_seconds: float

    def to_json(self) -> str:
        """Return the row as one line of JSON."""
        return json.dumps({name: round(v, 4) if isinstance(v, float) else v for name, v in asdict(self).items()})


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the trace allows, in prompt tokens."""

    prompt_tokens: int
    one_cache_tokens: int
    endless_cache_tokens: int


def row(policy: str, tally: Tally, bounds: Bounds) -> Row:
    """Sum up one run."""
    times = sorted(tally.seconds_to_first_token)
    return Row(
        policy=policy,
        replicas=len(tally.num_requests),
        hit_ratio=tally.cached_tokens / bounds.prompt_tokens,
        one_cache_hit_ratio=bounds.one_cache_tokens / bounds.prompt_tokens,
        load_max_to_mean=_max_to_mean(tally.computed_tokens),
        requests_max_to_mean=_max_to_mean(tally.num_requests),
        recomputed_tokens=bounds.endless_cache_tokens - tally.cached_tokens,
        foreseen_ratio=tally.num_foreseen / len(times) if policy.startswith("prefix-affinity") else None,
        ttft_mean_seconds=sum(times) / len(times),
        ttft_p99_seconds=times[len(times) * 99 // 100],
    )


def table(rows: Sequence[Row]) -> str:
    """Return the rows as aligned text, that is Markdown too."""
    head = ("policy", "replicas", "hits", "of one cache", "load", "requests", "recomputed", "foreseen", "TTFT", "p99")
    cells = [head, *(_cells(each) for each in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.policy,
        str(row.replicas),
        f"{row.hit_ratio:.2%}",
        f"{row.hit_ratio / row.one_cache_hit_ratio:.1%}" if row.one_cache_hit_ratio else "-",
        f"{row.load_max_to_mean:.3f}",
        f"{row.requests_max_to_mean:.3f}",
        f"{row.recomputed_tokens / 1e6:.1f} M",
        "-" if row.foreseen_ratio is None else f"{row.foreseen_ratio:.1%}",
        f"{row.ttft_mean_seconds:.2f} s",
        f"{row.ttft_p99_seconds:.1f} s",
    )


def _max_to_mean(values: Sequence[int]) -> float:
    return max(values) * len(values) / sum(values)
