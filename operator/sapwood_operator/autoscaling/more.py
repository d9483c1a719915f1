"""Why there should be more replicas: what the load needs, what was promised, what a further cache would save."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sapwood_operator.autoscaling.explain import bound_sentence, percent, replicas_text, seconds_text
from sapwood_operator.autoscaling.situation import Situation
from sapwood_operator.autoscaling.strain import Strain


@dataclass(frozen=True, slots=True)
class Wish:
    """A number of replicas, and why."""

    replicas: int
    reason: str
    message: str


def more(situation: Situation, strained: tuple[Strain, ...]) -> Wish | None:
    """Return the largest wish above ``base``, within ``maxReplicas``; None: nothing asks for more."""
    by_load = _by_load(situation)
    others = [by_load, _by_promise(situation, strained), _by_cache(situation)]
    wishes = [wish for wish in others if wish is not None]
    if not wishes:
        return None
    wish = max(wishes, key=lambda each: each.replicas)
    if wish.replicas > situation.high:
        message = (
            f"{wish.message}; at least {replicas_text(wish.replicas)} would be needed, maxReplicas is {situation.high}"
        )
        return Wish(situation.high, "Maximum", message)
    return wish


def _by_load(situation: Situation) -> Wish | None:
    """Return the fewest that keep to every bound; one that hangs is made up for by one more."""
    capacity, base = situation.capacity, situation.base
    bound = capacity.breaks(base)
    if bound is not None:
        least = capacity.least(base, situation.high)
        return Wish(least, bound, bound_sentence(capacity, bound, base))
    lacking = capacity.breaks(base - 1)
    if situation.moving.num_hung and lacking is not None:
        message = f"a replica does not get ready; {bound_sentence(capacity, lacking, base - 1)}"
        return Wish(base + 1, lacking, message)
    return None


def _by_promise(situation: Situation, strained: tuple[Strain, ...]) -> Wish | None:
    """Return one more where users wait nearly as long as promised and nothing is on its way to them."""
    if situation.moving.num_coming or situation.rest_left or situation.is_skewed:
        return None
    for strain in strained:
        if strain.asks_for_more:
            message = (
                f"{strain.what} takes {seconds_text(strain.measured_seconds)} for 90 of 100,"
                f" promised are {seconds_text(strain.promised_seconds)}"
            )
            return Wish(situation.base + 1, "PromisedLatency", message)
    return None


def _by_cache(situation: Situation) -> Wish | None:
    """Return one more where its cache would pay for it."""
    policy, hits = situation.policy, situation.capacity.hits
    is_quiet = not (situation.moving.num_coming or situation.moving.num_going or situation.observation.rolling)
    if not is_quiet or situation.settle_left or situation.is_skewed or situation.load.num_missing:
        return None
    if not hits.has_curve or hits.affinity < policy.min_affinity:
        return None
    saved = payback(situation, situation.base)
    if saved is None or saved < policy.min_payback or saved <= 0:
        return None
    message = (
        f"with one more, {percent(hits.at(situation.base + 1))} of prompt tokens would be found in caches"
        f" instead of {percent(hits.at(situation.base))}, which saves the work of {saved:.2f} replicas"
    )
    return Wish(situation.base + 1, "CacheGain", message)


def payback(situation: Situation, replicas: int) -> float | None:
    """Return the prefill work that one more than ``replicas`` saves by its cache, in shares of one replica's planned
    work; None: unknown."""
    capacity, load = situation.capacity, situation.load
    if replicas < 1:
        return None
    use = capacity.at(replicas).prefill_use
    computed = 1.0 - capacity.hits.at(replicas)
    if use is None or load.cost is None or not 0.0 < use < math.inf or not computed > 0:
        return None
    gained = capacity.hits.at(replicas + 1) - capacity.hits.at(replicas)
    return use * replicas * gained / computed / situation.policy.prefill_utilization
