"""Why there should be more replicas: what the load needs, what was promised, what a further cache would save."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sapwood_operator.autoscaling.explain import bound_sentence, hung_text, percent, replicas_text, seconds_text
from sapwood_operator.autoscaling.situation import Situation
from sapwood_operator.autoscaling.strain import Strain

UNSURE_SECONDS = 600.0
"""A latency that may be high by chance has to be so in every one of some seven windows."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A number of replicas, and why."""

    replicas: int
    reason: str
    message: str
    window_seconds: float = 0.0
    """For which it has to last at least, to be no chance."""


def more(situation: Situation, strained: tuple[Strain, ...]) -> Wish | None:
    """Return the largest wish above ``base``, within ``maxReplicas``; None: nothing asks for more."""
    if situation.moving.num_hung:
        asked = [_by_hung(situation)]
    else:
        asked = [_by_load(situation), _by_promise(situation, strained), _by_cache(situation)]
    wishes = [wish for wish in asked if wish is not None]
    if not wishes:
        return None
    wish = max(wishes, key=lambda each: (each.replicas, -each.window_seconds))
    if wish.replicas > situation.high:
        message = (
            f"{wish.message}; at least {replicas_text(wish.replicas)} would be needed, maxReplicas is {situation.high}"
        )
        return Wish(situation.high, "Maximum", message)
    return wish


def _by_load(situation: Situation) -> Wish | None:
    """Return the fewest that keep to every bound."""
    capacity, base = situation.capacity, situation.base
    bound = capacity.breaks(base)
    if bound is None:
        return None
    return Wish(capacity.least(base, situation.high), bound, bound_sentence(capacity, bound, base))


def _by_hung(situation: Situation) -> Wish | None:
    """Return one more for those that hang, until there is one more than the load needs. The next ones may hang too: so
    they are tried one by one, and what waits because of them asks for none."""
    capacity, base, moving = situation.capacity, situation.base, situation.moving
    lacking = capacity.breaks(base - 1)
    if lacking is None:
        return None
    message = f"{hung_text(moving.num_hung)}; {bound_sentence(capacity, lacking, base - 1)}"
    if moving.num_coming:
        return Wish(base, "ReplicasNotReady", f"{message}; one more is on its way")
    return Wish(base + 1, lacking, message)


def _by_promise(situation: Situation, strained: tuple[Strain, ...]) -> Wish | None:
    """Return one more where users wait nearly as long as promised and nothing is on its way to them."""
    if situation.moving.num_coming or situation.rest_left or situation.is_skewed or situation.is_ahead:
        return None
    for strain in sorted(strained, key=lambda each: not each.is_sure):
        if strain.asks_for_more:
            message = (
                f"{strain.what} takes {seconds_text(strain.measured_seconds)} for 90 of 100,"
                f" promised are {seconds_text(strain.promised_seconds)}"
            )
            return Wish(situation.base + 1, "PromisedLatency", message, 0.0 if strain.is_sure else UNSURE_SECONDS)
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
    capacity = situation.capacity
    if replicas < 1:
        return None
    use = capacity.at(replicas).prefill_use
    if use is None or not 0.0 < use < math.inf:
        return None
    gained = capacity.hits.at(replicas + 1) - capacity.hits.at(replicas)
    return use * replicas * gained / (1.0 - capacity.hits.at(replicas)) / situation.policy.prefill_utilization
