"""Whether one replica fewer would do, and what speaks against it.

What breaks the window begins it anew; what only holds leaves it running.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood_operator.autoscaling.capacity import Capacity
from sapwood_operator.autoscaling.explain import bound_sentence, hung_text, percent, replicas_text, seconds_text
from sapwood_operator.autoscaling.hits import Hits
from sapwood_operator.autoscaling.more import payback
from sapwood_operator.autoscaling.situation import Situation
from sapwood_operator.autoscaling.stabilise import was_too_few
from sapwood_operator.autoscaling.strain import Strain

_PAYBACK_KEPT = 0.7
"""Of what a cache must save to be added for it: below that it may go. Between the two nothing moves."""


@dataclass(frozen=True, slots=True)
class Against:
    """Why there is not one replica fewer."""

    reason: str
    message: str


def breaks_window(situation: Situation, strained: tuple[Strain, ...]) -> Against | None:
    """Return what makes one fewer too few, or makes it unknown whether it is."""
    return (
        _unknown_or_moving(situation)
        or _too_few(situation)
        or _skewed(situation)
        or _promised(situation, strained)
        or _cache_too_dear(situation)
    )


def holds(situation: Situation) -> Against | None:
    """Return why one fewer has to wait although it would do."""
    if situation.settle_left and situation.capacity.hits.has_curve and not _would_do_without_curve(situation):
        return Against("Settling", "the caches have not settled since the last change")
    return None


def _would_do_without_curve(situation: Situation) -> bool:
    """Whether one fewer would do if no more were hit than has to be: as large a share of what is hit now as of the
    memory is left."""
    capacity, base = situation.capacity, situation.base
    least = Hits(curves=(), num_measured=base, affinity=1.0, measured=situation.load.hit_ratio or 0.0)
    bounded = Capacity(situation.policy, situation.load, least, counts_backlog=capacity.counts_backlog)
    return bounded.breaks(base - 1, situation.policy.scale_down_margin) is None


def _unknown_or_moving(situation: Situation) -> Against | None:
    load, moving, base = situation.load, situation.moving, situation.base
    if base - 1 < max(1, situation.low):
        return Against("Minimum", _minimum_sentence(situation))
    if load.num_missing:
        return Against("MetricsMissing", f"{load.num_missing} of {replicas_text(load.num_ready)} did not report")
    if moving.num_coming or moving.num_going or situation.observation.rolling:
        return Against("ReplicasPending", pending_sentence(situation))
    if situation.capacity.at(base - 1).prefill_use is None:
        return Against("MetricsMissing", "what a step costs is not known yet")
    if situation.capacity.at(base - 1).kv_use is None:
        return Against("MetricsMissing", "how much KV memory a replica has is not known yet")
    return None


def _minimum_sentence(situation: Situation) -> str:
    if situation.low > 0:
        return f"minReplicas is {situation.policy.min_replicas}"
    return f"the last one goes when nobody has used the service for {seconds_text(situation.policy.idle_seconds)}"


def _too_few(situation: Situation) -> Against | None:
    capacity, fewer, num_hung = situation.capacity, situation.base - 1, situation.moving.num_hung
    bound = capacity.breaks(fewer)
    if bound is not None:
        return Against(bound, bound_sentence(capacity, bound, fewer))
    if num_hung > 1 and capacity.breaks(fewer - 1) is not None:
        # One of them goes first, and for those that are left one more would be asked for again.
        return Against("ReplicasNotReady", hung_text(num_hung))
    margin = situation.policy.scale_down_margin
    near = capacity.breaks(fewer, margin)
    if near is not None:
        return Against("AsNeeded", f"{bound_sentence(capacity, near, fewer)}, of which {percent(margin)} may be used")
    if was_too_few(situation.state, capacity, fewer):
        tokens = f"{situation.state.too_many_tokens} tokens a second"
        return Against("AsNeeded", f"one fewer was tried, and {tokens} were too much for a replica")
    return None


def _skewed(situation: Situation) -> Against | None:
    if not situation.is_skewed:
        return None
    uneven = f"one replica has {situation.skew or 0.0:.1f} times the mean of requests while another has hardly any"
    return Against("RoutingSkew", f"{uneven}: routing has to mend it")


def _promised(situation: Situation, strained: tuple[Strain, ...]) -> Against | None:
    """Where the model says that replicas hardly shorten what users wait it is believed, but not of a broken promise."""
    for strain in strained:
        is_broken = strain.share > 1.0 and situation.load.arrivals > 0
        if strain.forbids_fewer or is_broken:
            measured = seconds_text(strain.measured_seconds)
            promised = seconds_text(strain.promised_seconds)
            why = "one fewer would add to it" if strain.forbids_fewer else "nobody knows what one fewer would add to it"
            message = f"{strain.what} takes {measured} for 90 of 100, promised are {promised}, and {why}"
            return Against("PromisedLatency", message)
    return None


def _cache_too_dear(situation: Situation) -> Against | None:
    policy, hits, base = situation.policy, situation.capacity.hits, situation.base
    if not hits.has_curve:
        return None
    loss = hits.at(base) - hits.at(base - 1)
    if loss > policy.max_hit_loss:
        return Against("HitLoss", f"one fewer would lose {percent(loss)} of prompt tokens from the caches")
    saved = payback(situation, base - 1)
    if (
        hits.affinity >= policy.min_affinity
        and saved is not None
        and saved >= _PAYBACK_KEPT * policy.min_payback
        and saved > 0
    ):
        return Against("CacheGain", f"the last one's cache saves the work of {saved:.2f} replicas")
    return None


def pending_sentence(situation: Situation) -> str:
    """Say what is on its way."""
    moving = situation.moving
    parts = []
    if moving.num_coming:
        parts.append(f"{replicas_text(moving.num_coming)} on the way in")
    if moving.num_going:
        parts.append(f"{replicas_text(moving.num_going)} on the way out")
    if situation.observation.rolling:
        parts.append("pods of a former revision are left")
    return ", ".join(parts)
