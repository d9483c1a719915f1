"""What the whole service has to do, from what its replicas say: sums, means and percentiles of one observation.

Missing is not zero. A replica that should have reported and did not is taken for as busy as nine tenths of the others
are at most; numbers that make no sense are as good as none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sapwood_operator.autoscaling.values import (
    Demand,
    Latencies,
    NoDemand,
    NoReading,
    Observation,
    Reading,
    Replica,
    StepCost,
)

REPORTS_AFTER_SECONDS = 45.0
"""A replica that has been ready for less has not been read twice yet, and is not missed."""
_SURE = 2.0
"""Standard deviations."""
_MOST = 1e15
"""Nothing that is counted here gets there; what does is no number of ours, and its sums might be infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Of all replicas together unless said otherwise; rates a second."""

    num_ready: int
    num_reporting: int
    """Ready ones with a reading."""
    num_missing: int
    """Ready ones that should have one: what they do is estimated, and is in all sums."""
    arrivals: float
    prompt_tokens: float
    """Offered: of what arrives, also where it has to wait."""
    mean_prompt_tokens: float
    """Of one request; 0 while none came."""
    generation_tokens: float
    in_flight: float
    """Requests that run or wait."""
    waiting_tokens: float
    pinned_tokens: float
    capacity_tokens: float
    """KV of one replica, on average."""
    mean_context_tokens: float
    """Keys that one decode reads."""
    evicted_tokens: float
    cost: StepCost | None
    """On average; None: unknown."""
    hit_ratio: float | None
    """Measured, of prompt tokens; None: there were none."""
    num_arrived: float
    """Requests within the window."""
    ttft_p90_seconds: float | None
    """Measured; None: nobody waited for one."""
    ttft_least_seconds: float | None
    """It is surely so long, however few requests were measured."""
    itl_p90_seconds: float | None
    itl_least_seconds: float | None
    is_idle: bool
    """Every ready replica says that it has nothing to do, and had nothing within the window."""
    quiet_seconds: float
    """Since any of them had; within the window."""

    @property
    def coverage(self) -> float:
        """Share of those that should report which do, 0 where nobody should."""
        expected = self.num_reporting + self.num_missing
        return self.num_reporting / expected if expected else 0.0


@dataclass(frozen=True, slots=True)
class Heard:
    """A replica and what it says, if all of that can be true."""

    replica: Replica
    reading: Reading | None


def hear(observation: Observation) -> list[Heard]:
    """Look at every reading once."""
    return [Heard(each, _believed(each.reading)) for each in observation.replicas]


def _believed(reading: Reading | NoReading) -> Reading | None:
    # NaN fails every comparison.
    if (
        isinstance(reading, Reading)
        and 0.0 < reading.window_seconds < _MOST
        and 0.0 <= reading.arrivals < _MOST
        and 0.0 <= reading.prompt_tokens < _MOST
        and 0.0 <= reading.cached_tokens < _MOST
        and 0.0 <= reading.generation_tokens < _MOST
        and 0.0 <= reading.running < _MOST
        and 0.0 <= reading.waiting < _MOST
        and 0.0 <= reading.waiting_tokens < _MOST
        and 0.0 <= reading.capacity_tokens < _MOST
        and 0.0 <= reading.pinned_tokens < _MOST
        and 0.0 <= reading.evicted_tokens < _MOST
        and 0.0 <= reading.quiet_seconds < _MOST
    ):
        return reading
    return None


def load_of(heard: Sequence[Heard], demand: Demand | NoDemand) -> Load:
    """Add up what replicas say and gateways hold. What leaving ones still got counts: it will come to others."""
    ready = [each.reading for each in heard if each.reading is not None and each.replica.stage == "ready"]
    leaving = [each.reading for each in heard if each.reading is not None and each.replica.stage == "leaving"]
    silent = [each.replica for each in heard if each.reading is None and each.replica.stage == "ready"]
    num_missing = sum(not each.age_seconds < REPORTS_AFTER_SECONDS for each in silent)
    everyone = ready + leaving
    sums = _sums(_lives(heard), [(each, 1.0) for each in leaving], num_missing)
    arrivals, prompt_tokens, generation_tokens, running, waiting, waiting_tokens, pinned_tokens = sums
    mean_prompt = _mean_prompt(everyone)
    if isinstance(demand, Demand) and demand.num_waiting > 0:
        waiting, waiting_tokens = waiting + demand.num_waiting, waiting_tokens + demand.num_waiting * mean_prompt
    if waiting > 0:
        # Admitted is what the replicas can do; asked of them is more.
        prompt_tokens = max(prompt_tokens, arrivals * mean_prompt)
    num_ready = len(ready) + len(silent)
    ttft, itl = ninth_tenths_of([each.ttft for each in everyone]), ninth_tenths_of([each.itl for each in everyone])
    return Load(
        num_ready=num_ready,
        num_reporting=len(ready),
        num_missing=num_missing,
        arrivals=arrivals,
        prompt_tokens=prompt_tokens,
        mean_prompt_tokens=mean_prompt,
        generation_tokens=generation_tokens,
        in_flight=running + waiting,
        waiting_tokens=waiting_tokens,
        pinned_tokens=pinned_tokens,
        capacity_tokens=sum([each.capacity_tokens for each in ready]) / len(ready) if ready else 0.0,
        mean_context_tokens=min(pinned_tokens, pinned_tokens / running) if running > 0 else mean_prompt,
        evicted_tokens=sum([each.evicted_tokens for each in everyone]),
        cost=_mean_cost(everyone),
        hit_ratio=_hit_ratio(everyone),
        num_arrived=sum([each.arrivals * each.window_seconds for each in everyone]),
        ttft_p90_seconds=ttft[0],
        ttft_least_seconds=ttft[1],
        itl_p90_seconds=itl[0],
        itl_least_seconds=itl[1],
        quiet_seconds=0.0 if silent else min([each.quiet_seconds for each in ready], default=0.0),
        is_idle=len(ready) == num_ready and not any((arrivals, prompt_tokens, generation_tokens, running, waiting)),
    )


def _lives(heard: Sequence[Heard]) -> list[tuple[Reading, float]]:
    """Return what ready ones say, and the share of the longest window for which each has been there.

    What a newcomer takes went to others before: with its rate at full weight beside their means of a longer time, what
    moved from them to it would be counted twice.
    """
    longest = max([each.reading.window_seconds for each in heard if each.reading is not None], default=0.0)
    found = [(each.reading, each.replica) for each in heard if each.reading and each.replica.stage == "ready"]
    return [(told, min(1.0, max(told.window_seconds, replica.age_seconds) / longest)) for told, replica in found]


def _sums(ready: list[tuple[Reading, float]], leaving: list[tuple[Reading, float]], num_missing: int) -> list[float]:
    """Return the sums of what `load_of` names, those that are missing taken for as busy as busy ones are."""
    rows = [
        (
            each.arrivals * life,
            each.prompt_tokens * life,
            each.generation_tokens * life,
            each.running,
            each.waiting,
            each.waiting_tokens,
            each.pinned_tokens,
        )
        for each, life in ready + leaving
    ]
    if not rows:
        return [0.0] * 7
    sums = [sum(column) for column in zip(*rows, strict=True)]
    if not num_missing or not ready:
        return sums
    columns = zip(*rows[: len(ready)], strict=True)
    return [total + num_missing * ninth_tenth(column) for total, column in zip(sums, columns, strict=True)]


def _hit_ratio(readings: list[Reading]) -> float | None:
    tokens = sum([each.prompt_tokens for each in readings])
    return min(1.0, sum([each.cached_tokens for each in readings]) / tokens) if tokens > 0 else None


def ninth_tenth(numbers: Sequence[float]) -> float:
    """Return the least of them that nine tenths do not exceed."""
    return sorted(numbers)[math.ceil(0.9 * len(numbers)) - 1]


def ninth_tenth_of(histograms: Sequence[Latencies]) -> float | None:
    """Return the 90th percentile of all together, in seconds; None where nothing was counted or borders differ."""
    return ninth_tenths_of(histograms)[0]


def ninth_tenths_of(histograms: Sequence[Latencies]) -> tuple[float | None, float | None]:
    """Return the same and what it is at least, `_SURE` standard deviations of a share of so many requests less."""
    told = [each for each in histograms if each.borders]
    if not told:
        return None, None
    borders = told[0].borders
    if [each for each in told if each.borders != borders or len(each.counts) != len(borders)]:
        return None, None
    counts = list(map(sum, zip(*[each.counts for each in told], strict=True)))
    total = sum(counts)
    if not 0.0 < total < _MOST or not min(counts) >= 0.0:
        return None, None
    surely = max(0.0, 0.9 - _SURE * math.sqrt(0.9 * 0.1 / total))
    return _quantile(borders, counts, 0.9 * total), _quantile(borders, counts, surely * total)


def _quantile(borders: Sequence[float], counts: Sequence[float], left: float) -> float | None:
    """Return what ``left`` of the counted keep to: within a bucket a straight line; in the last, which has no end, its
    beginning. None where borders do not rise."""
    begin = 0.0
    for border, count in zip(borders, counts, strict=True):
        if not begin < border:
            return None
        if left <= count:
            end = border if border < math.inf else begin
            return begin + (end - begin) * (left / count) if count > 0 else begin
        left, begin = left - count, border
    return None


def _mean_prompt(readings: list[Reading]) -> float:
    tokens = sum([each.prompt_tokens * each.window_seconds for each in readings])
    admitted = sum([_admissions(each) * each.window_seconds for each in readings])
    return min(_MOST, tokens / admitted) if admitted > 0 else 0.0


def _admissions(reading: Reading) -> float:
    told = reading.admissions
    return told if told is not None and 0.0 <= told < _MOST else reading.arrivals


def _mean_cost(readings: list[Reading]) -> StepCost | None:
    known = [each.cost for each in readings if each.cost is not None and _is_cost(each.cost)]
    if not known:
        return None
    # Hardly any prompt tokens beside much else: their cost is not to be told apart there, and 0 says no more.
    costs = [each for each in known if each.prefill_token > 0] or known
    number = len(costs)
    return StepCost(
        prefill_token=sum([each.prefill_token for each in costs]) / number,
        prefill_key=sum([each.prefill_key for each in costs]) / number,
        decode=sum([each.decode for each in costs]) / number,
        decode_key=sum([each.decode_key for each in costs]) / number,
        base=sum([each.base for each in costs]) / number,
    )


def _is_cost(cost: StepCost) -> bool:
    return (
        0.0 <= cost.prefill_token < _MOST
        and 0.0 <= cost.prefill_key < _MOST
        and 0.0 <= cost.decode < _MOST
        and 0.0 <= cost.decode_key < _MOST
        and 0.0 <= cost.base < _MOST
        and cost.prefill_token + cost.prefill_key + cost.base > 0.0
    )
