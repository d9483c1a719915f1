"""Numbers out of outcomes: one summary a run, ratios between servers, and how both are shown."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood_tools.bench.cpu_use import CpuUse
from sapwood_tools.bench.measure import Outcome

_QUIET_CORES = 0.1
"""Up to here, use of the processors by others is noise that every machine has."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One workload on one server, once."""

    server: str
    workload: str
    variant: int
    seconds: float
    output_tokens_per_second: float
    ttft_p50_seconds: float
    ttft_p95_seconds: float
    tpot_p50_seconds: float
    itl_p95_seconds: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int | None
    """None: the server does not say."""
    num_failures: int
    failures: dict[str, int]
    """Reason -> how often."""
    num_other_lengths: int
    cpu: CpuUse | None
    """None: the server was not started here, so that its share cannot be told."""

    def to_json(self) -> dict[str, Any]:
        """Return a plain object; not-a-number becomes null."""
        fields = dataclasses.asdict(self)
        return {key: None if value != value else value for key, value in fields.items()}


def summarise(server: str, outcome: Outcome, cpu: CpuUse | None) -> Summary:
    """Return the figures of one run; latencies are not-a-number where no answer came."""
    answers = outcome.answers
    num_output_tokens = sum(answer.num_output_tokens for answer in answers)
    ttft = [answer.ttft_seconds for answer in answers]
    tpot = [answer.tpot_seconds for answer in answers if answer.tpot_seconds is not None]
    cached = [answer.num_cached_tokens for answer in answers if answer.num_cached_tokens is not None]
    return Summary(
        server=server,
        workload=outcome.workload,
        variant=outcome.variant,
        seconds=outcome.seconds,
        output_tokens_per_second=num_output_tokens / outcome.seconds,
        ttft_p50_seconds=percentile(ttft, 0.5),
        ttft_p95_seconds=percentile(ttft, 0.95),
        tpot_p50_seconds=percentile(tpot, 0.5),
        itl_p95_seconds=percentile([gap for answer in answers for gap in answer.gaps_seconds], 0.95),
        num_prompt_tokens=sum(answer.num_prompt_tokens for answer in answers),
        num_output_tokens=num_output_tokens,
        num_cached_tokens=sum(cached) if cached else None,
        num_failures=len(outcome.failures),
        failures=dict(Counter(failure.reason for failure in outcome.failures)),
        num_other_lengths=outcome.num_other_lengths,
        cpu=cpu,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` (0 … 1) of the values lie, between neighbours by proportion."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Throughput of one server over another's, repetition by repetition; above 1 the first is faster."""

    workload: str
    server: str
    peer: str
    median: float
    least: float
    most: float
    num_repetitions: int
    num_disturbed: int
    """Repetitions in which others used more than a tenth of a core on either side."""


def ratios(summaries: Iterable[Summary], server: str, peer: str) -> list[Ratio]:
    """Pair the runs of two servers by workload and variant; runs with failures are left out."""
    runs = {(run.server, run.workload, run.variant): run for run in summaries if not run.num_failures}
    names = dict.fromkeys(workload for _, workload, _ in runs)
    found: list[Ratio] = []
    for name in names:
        variants = sorted(v for s, w, v in runs if (s, w) == (server, name) and (peer, name, v) in runs)
        pairs = [(runs[server, name, v], runs[peer, name, v]) for v in variants]
        if not pairs:
            continue
        values = [a.output_tokens_per_second / b.output_tokens_per_second for a, b in pairs]
        disturbed = sum(_disturbed(a) or _disturbed(b) for a, b in pairs)
        median = statistics.median(values)
        found.append(Ratio(name, server, peer, median, min(values), max(values), len(values), disturbed))
    return found


def _disturbed(run: Summary) -> bool:
    return run.cpu is not None and run.cpu.foreign_cores + run.cpu.stolen_cores > _QUIET_CORES


def table(summaries: Sequence[Summary]) -> str:
    """Return the runs as aligned text, one line each."""
    head = (
        "server",
        "workload",
        "seconds",
        "tok/s",
        "TTFT p50",
        "p95 ms",
        "TPOT ms",
        "ITL p95",
        "cached",
        "failed",
        "foreign",
    )
    rows = [
        (
            run.server,
            f"{run.workload} r{run.variant}",
            f"{run.seconds:.2f}",
            f"{run.output_tokens_per_second:.1f}",
            f"{run.ttft_p50_seconds * 1e3:.0f}",
            f"{run.ttft_p95_seconds * 1e3:.0f}",
            f"{run.tpot_p50_seconds * 1e3:.2f}",
            f"{run.itl_p95_seconds * 1e3:.1f}",
            "?" if run.num_cached_tokens is None else f"{run.num_cached_tokens}/{run.num_prompt_tokens}",
            str(run.num_failures),
            "?" if run.cpu is None else f"{run.cpu.foreign_cores + run.cpu.stolen_cores:.2f}",
        )
        for run in summaries
    ]
    return _align([head, *rows])


def ratio_table(found: Sequence[Ratio]) -> str:
    """Return the ratios as aligned text, one line each."""
    head = ("workload", "ours / peer", "median", "least", "most", "pairs", "disturbed")
    rows = [
        (
            ratio.workload,
            f"{ratio.server} / {ratio.peer}",
            f"{ratio.median:.2f}",
            f"{ratio.least:.2f}",
            f"{ratio.most:.2f}",
            str(ratio.num_repetitions),
            str(ratio.num_disturbed),
        )
        for ratio in found
    ]
    return _align([head, *rows])


def _align(rows: Sequence[Sequence[str]]) -> str:
    """Pad columns; the first two hold names and lean left, the others hold numbers and lean right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
