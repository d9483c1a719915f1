"""When a service goes to no replica and when it comes back."""

from __future__ import annotations

from sapwood_operator.autoscaling.explain import seconds_text
from sapwood_operator.autoscaling.more import Wish
from sapwood_operator.autoscaling.situation import Situation
from sapwood_operator.autoscaling.stabilise import since_change
from sapwood_operator.autoscaling.values import Demand

_GONE_SECONDS = 3.0
"""Gateways may hear sooner than the operator that the replica is ready, and have its first answers behind them."""


def at_zero(situation: Situation) -> Wish:
    """Decide for a service without a replica, of which gateways alone can know what it has to do."""
    demand = situation.observation.demand
    if not isinstance(demand, Demand):
        return Wish(0, "MetricsMissing", f"no gateway says whether requests wait: {demand.why}")
    if demand.num_waiting > 0:
        return Wish(1, "Demand", f"there is no replica, and requests wait: {demand.num_waiting}")
    if demand.num_running > 0:
        # Nobody had one when this was decided: they came while the last replica was on its way out.
        return Wish(1, "Demand", f"{demand.num_running} requests came before the last replica had gone")
    if (
        situation.policy.mode == "DryRun"
        and demand.is_whole
        and demand.idle_seconds < since_change(situation.changes, situation.now)
    ):
        return Wish(1, "Demand", "somebody asked for something since")
    return Wish(0, "Idle", "nobody asks for anything")


def to_zero(situation: Situation) -> Wish | None:
    """Return the wish for no replica, where nobody needs one any more; None otherwise."""
    demand, load = situation.observation.demand, situation.load
    if situation.low > 0 or not isinstance(demand, Demand) or not demand.is_whole:
        return None
    if demand.num_waiting > 0 or demand.num_running > 0:
        return None
    if load.num_ready == 0:
        if situation.state.waking_since is not None and demand.idle_seconds >= _GONE_SECONDS:
            return Wish(0, "DemandGone", "everybody left before the first replica was ready")
        return None
    return _idle(situation, demand)


def waking_since(situation: Situation, wish: Wish) -> float | None:
    """Return `State.waking_since` after ``wish``."""
    if wish.replicas > 0 and situation.load.num_ready == 0:
        return situation.now if wish.reason == "Demand" else situation.state.waking_since
    return None


def _idle(situation: Situation, demand: Demand) -> Wish | None:
    """The idle clock runs only while replicas are ready: one that is on its way was asked for."""
    load, wanted = situation.load, situation.policy.idle_seconds
    replicas = [each for each in situation.observation.replicas if each.stage != "leaving"]
    if not (load.is_idle or 0.0 < load.quiet_seconds >= wanted) or any(each.stage != "ready" for each in replicas):
        return None
    idle = min(demand.idle_seconds, max(each.age_seconds for each in replicas))
    if not idle >= wanted:
        return None
    return Wish(0, "Idle", f"nobody has used the service for {seconds_text(idle)}")
