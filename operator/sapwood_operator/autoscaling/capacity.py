"""What so many replicas would do with the load that there is, and which bound breaks first.

A replica's step costs what `StepCost` says, so with load spread evenly each of n replicas is busy for

    decode  = generation_tokens / n * (decode + decode_key * context)                     of its time,
    prefill = prompt_tokens * (1 - hits(n)) / n * (prefill_token + prefill_key * keys)    of it for prompts,

and prompts get the speed V = (1 - decode) / (prefill_token + prefill_key * keys) that decoding leaves. The base of a
step is paid once however many tokens are in it, so it takes no speed from either; it is what one stream waits for at
least. A prompt alone waits base + its tokens / V. How long requests wait for others is what an M/M/s queue makes of it
(Sakasegawa, "An approximation formula", 1977), with fewer servers than replicas where requests are bound to one by
their prefix. A stream's step takes base / (1 - decode - prefill): whoever computes slower has more streams in a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from sapwood_operator.autoscaling.hits import Hits
from sapwood_operator.autoscaling.load import Load
from sapwood_operator.domain.scaling_policy import ScalingPolicy

Bound = Literal["PrefillSpeed", "TimeToFirstToken", "KvMemory", "DecodeSpeed"]
"""Of `sapwood_contract.metrics.SCALING_REASONS`."""

CATCH_UP_SECONDS = 60.0
"""Within which work that waits should be done beside what arrives. A pod takes minutes to start: replicas for a
backlog that is to be gone at once would come when it is gone, and be too many."""
_LINE = 0.4
"""Of what is promised beyond a request's own time, that a line may always take: it needs no catching up."""
_MOST_LONGER = 4.0
LEAST_GAIN = 0.05
"""Of what is promised. Of a wait that is mostly one's own prompt replicas take nothing away; a latency that a quarter
more of them would shorten by less is no reason to add one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """With so many replicas; None: unknown, infinite: more comes than they can do."""

    replicas: int
    hit_ratio: float
    prefill_use: float | None
    """Of the prefill speed that decoding leaves."""
    alone_seconds: float | None
    """To the first token of a mean prompt on a replica that does nothing else."""
    own_seconds: float | None
    """The same beside the streams that are decoded."""
    wait_p90_seconds: float | None
    """For others, before that."""
    catch_up_seconds: float | None
    """Until of what waits now no more is left than a line that the promise has room for."""
    kv_use: float | None
    """Of the KV memory, by running requests."""
    itl_seconds: float | None
    single_itl_seconds: float | None
    """Of a stream alone."""

    @property
    def ttft_p90_seconds(self) -> float | None:
        """To the first token, 90 of 100."""
        if self.own_seconds is None or self.wait_p90_seconds is None:
            return None
        return self.own_seconds + self.wait_p90_seconds


@dataclass(frozen=True, slots=True)
class Capacity:
    """Answers for one observation; remembers what it was asked."""

    policy: ScalingPolicy
    load: Load
    hits: Hits
    memory_factor: float = 1.0
    counts_backlog: bool = True
    """Not while replicas are on their way: what waits is why they are."""
    _known: dict[int, Forecast] = field(default_factory=dict)

    def at(self, replicas: int) -> Forecast:
        """Return what ``replicas`` (at least 1) would do."""
        if replicas not in self._known:
            self._known[replicas] = self._forecast(replicas)
        return self._known[replicas]

    def _forecast(self, replicas: int) -> Forecast:
        load, hits = self.load, self.hits.at(replicas)
        alone = use = own = wait = catch_up = itl = single = None
        computed = load.prompt_tokens * (1.0 - hits)
        cost = load.cost
        if cost is not None:
            prompt = load.mean_prompt_tokens
            token = cost.prefill_token + cost.prefill_key * prompt * (1.0 + hits) / 2
            if not token > 0.0:
                # Not told apart from the step's base: a prompt that is computed then costs a step.
                token = cost.base / max(1.0, prompt * (1.0 - hits))
            one_decode = cost.decode + cost.decode_key * load.mean_context_tokens
            decode = load.generation_tokens / replicas * one_decode
            prefill = computed / replicas * token
            single = cost.base + one_decode
            alone = cost.base + prompt * (1.0 - hits) * token
            itl = max(single, cost.base / (1.0 - decode - prefill)) if decode + prefill < 1.0 else math.inf
            if decode < 1.0:
                use = prefill / (1.0 - decode)
                own = cost.base + prompt * (1.0 - hits) * token / (1.0 - decode)
                wait = wait_p90(own, use, replicas ** (1.0 - self.hits.affinity / 2))
                speed = replicas * (1.0 - decode) / token
                line_seconds = max(0.0, _LINE * ((self.policy.ttft_p90_seconds or 0.0) - own))
                late = load.waiting_tokens - speed * line_seconds
                catch_up = _ratio(late, speed - computed) if late > 0 else 0.0
            else:
                use = own = wait = catch_up = math.inf
        elif not computed:
            use = wait = 0.0
        return Forecast(
            replicas=replicas,
            hit_ratio=hits,
            prefill_use=use,
            alone_seconds=alone,
            own_seconds=own,
            wait_p90_seconds=wait,
            catch_up_seconds=catch_up if load.waiting_tokens else 0.0,
            kv_use=self._kv_use(replicas, itl),
            itl_seconds=itl,
            single_itl_seconds=single,
        )

    def _kv_use(self, replicas: int, itl: float | None) -> float | None:
        """Return the share that is pinned. On fewer replicas streams are slower, so more of them run at once."""
        load = self.load
        memory = replicas * load.capacity_tokens * self.memory_factor
        if memory <= 0:
            return None if load.pinned_tokens else 0.0
        longer = 1.0
        if itl is not None and 0 < replicas < load.num_ready:
            now = self.at(load.num_ready).itl_seconds
            if now is not None and 0 < now < math.inf:
                longer = min(_MOST_LONGER, max(1.0, itl / now))
        return load.pinned_tokens * longer / memory if load.pinned_tokens else 0.0

    def breaks(self, replicas: int, margin: float = 1.0) -> Bound | None:
        """Return the first bound that ``replicas`` do not keep to ``margin`` of, None where they keep to all that are
        known."""
        if replicas <= 0:
            return "PrefillSpeed" if self.load.in_flight or self.load.arrivals else None
        policy, forecast = self.policy, self.at(replicas)
        if forecast.prefill_use is not None and forecast.prefill_use > margin * policy.prefill_utilization:
            return "PrefillSpeed"
        if self._breaks_ttft(forecast, margin):
            return "TimeToFirstToken"
        if forecast.kv_use is not None and forecast.kv_use > margin * policy.kv_utilization:
            return "KvMemory"
        if self._breaks_itl(forecast, margin):
            return "DecodeSpeed"
        return None

    def _breaks_ttft(self, forecast: Forecast, margin: float) -> bool:
        if self.counts_backlog and (forecast.catch_up_seconds or 0.0) > margin * CATCH_UP_SECONDS:
            return True
        promised, own, wait = self.policy.ttft_p90_seconds, forecast.own_seconds, forecast.wait_p90_seconds
        if promised is None or own is None or wait is None or not wait > margin * (promised - own):
            return False
        return self.ttft_gain(forecast.replicas) >= LEAST_GAIN

    def _breaks_itl(self, forecast: Forecast, margin: float) -> bool:
        promised, itl = self.policy.itl_p90_seconds, forecast.itl_seconds
        if promised is None or itl is None or not itl > margin * promised or not self.load.generation_tokens:
            return False
        return self.itl_gain(forecast.replicas) >= LEAST_GAIN

    def ttft_gain(self, replicas: int) -> float:
        """Return by how much of what is promised a quarter more replicas would shorten the time to first token."""
        fewer, more = self.at(max(1, replicas)), self.at(_a_quarter_more(replicas))
        alone, promised = fewer.alone_seconds, self.policy.ttft_p90_seconds
        if promised is None or (alone is not None and alone >= promised):
            return 0.0
        return _gain(fewer.ttft_p90_seconds, more.ttft_p90_seconds, promised)

    def itl_gain(self, replicas: int) -> float:
        """Return by how much of what is promised a quarter more replicas would shorten a stream's step."""
        fewer, more = self.at(max(1, replicas)), self.at(_a_quarter_more(replicas))
        single, promised = fewer.single_itl_seconds, self.policy.itl_p90_seconds
        if promised is None or (single is not None and single >= promised):
            return 0.0
        return _gain(fewer.itl_seconds, more.itl_seconds, promised)

    def least(self, begin: int, high: int) -> int:
        """Return the fewest from ``begin`` on that keep to all bounds; ``high`` + 1 where none up to ``high`` do."""
        return next((each for each in range(begin, high + 1) if self.breaks(each) is None), high + 1)


def wait_p90(service_seconds: float, use: float, servers: float) -> float:
    """Return how long 90 of 100 wait at most, for ``servers`` that are busy for ``use`` of their time."""
    if use >= 1.0:
        return math.inf
    if use <= 0.0:
        return 0.0
    waits = use ** (math.sqrt(2.0 * (servers + 1.0)) - 1.0)
    return service_seconds / (servers * (1.0 - use)) * math.log(10.0 * waits) if waits > 0.1 else 0.0


def _a_quarter_more(replicas: int) -> int:
    return max(1, replicas) + -(-max(1, replicas) // 4)


def _gain(fewer: float | None, more: float | None, promised: float) -> float:
    """Return what is gained, in shares of the promise; all of it where that is unknown or without end."""
    if fewer is None or more is None or fewer == math.inf:
        return 1.0
    return (fewer - more) / promised


def _ratio(amount: float, rate: float) -> float:
    return amount / rate if rate > 0 else math.inf
