"""What goes with a decision: its inputs, the numbers that were rejected, and the conditions of the service."""

from __future__ import annotations

from sapwood_operator.autoscaling.explain import bound_sentence, hung_text, percent, replicas_text, seconds_text
from sapwood_operator.autoscaling.more import Wish
from sapwood_operator.autoscaling.situation import Situation
from sapwood_operator.autoscaling.values import Alternative, Demand, Verdict


def inputs_of(situation: Situation) -> dict[str, float]:
    """Return what was decided from, by `sapwood_contract.metrics.SCALING_SIGNALS`; what is unknown is absent."""
    load = situation.load
    told: dict[str, float] = {}
    if load.num_reporting + load.num_missing:
        told["coverage_ratio"] = load.coverage
    if not load.num_reporting:
        return told
    told |= {
        "arrivals_per_second": load.arrivals,
        "prompt_tokens_per_second": load.prompt_tokens,
        "affinity": situation.capacity.hits.affinity,
        "waiting_tokens": load.waiting_tokens,
    }
    memory = load.num_ready * load.capacity_tokens
    known = {
        "hit_ratio": load.hit_ratio,
        "prefill_tokens_per_second": None if load.hit_ratio is None else load.prompt_tokens * (1.0 - load.hit_ratio),
        "ttft_p90_seconds": load.ttft_p90_seconds,
        "itl_p90_seconds": load.itl_p90_seconds,
        "pinned_kv_ratio": load.pinned_tokens / memory if memory > 0 else None,
        "skew_ratio": situation.skew,
    }
    return told | {name: value for name, value in known.items() if value is not None}


def predicted_of(situation: Situation) -> dict[int, float]:
    """Return the hit ratio that is predicted with one replica fewer, as many, and one more; none without a curve."""
    hits = situation.capacity.hits
    if not hits.has_curve:
        return {}
    around = range(max(1, situation.base - 1), situation.base + 2)
    return {number: hits.at(number) for number in around}


def rejected_of(situation: Situation, wish: Wish, why_not_fewer: str) -> tuple[Alternative, ...]:
    """Return one replica fewer, as many and one more than there are, less what was decided, each with why not."""
    base = situation.base
    return tuple(
        Alternative(number, _why_not(situation, number, wish, why_not_fewer))
        for number in (base - 1, base, base + 1)
        if number >= 0 and number != wish.replicas
    )


def _why_not(situation: Situation, number: int, wish: Wish, why_not_fewer: str) -> str:
    if number < situation.low:
        return f"minReplicas is {situation.policy.min_replicas}"
    if number > situation.high:
        return f"maxReplicas is {situation.policy.max_replicas}"
    if not situation.load.num_reporting or number == 0:
        return wish.message
    if number > wish.replicas:
        return wish.message if number == situation.base else _enough(situation)
    if number == situation.base - 1 and wish.replicas == situation.base:
        return why_not_fewer or wish.message
    bound = situation.capacity.breaks(number)
    return wish.message if bound is None else bound_sentence(situation.capacity, bound, number)


def _enough(situation: Situation) -> str:
    use = situation.capacity.at(max(1, situation.base)).prefill_use
    return f"{replicas_text(situation.base)} would suffice: {percent(use)} of their prefill speed"


def verdicts_of(situation: Situation, wish: Wish, limit: str) -> tuple[Verdict, ...]:
    """Return the service's conditions; ``limit``: why it does not get the replicas it should, empty where it does."""
    return (_metrics(situation), _active(situation), _limited(situation, wish, limit))


def _metrics(situation: Situation) -> Verdict:
    load, demand = situation.load, situation.observation.demand
    expected = load.num_reporting + load.num_missing
    if situation.base == 0:
        if isinstance(demand, Demand):
            return Verdict("MetricsAvailable", True, "Reported", "the gateways say whether requests wait")
        return Verdict("MetricsAvailable", False, "MetricsMissing", f"no gateway reports: {demand.why}")
    if not load.num_ready:
        return Verdict("MetricsAvailable", False, "NoReplicaReady", "no replica is ready to report")
    message = f"{load.num_reporting} of {replicas_text(max(expected, load.num_ready))} reported"
    if is_blind(situation):
        return Verdict("MetricsAvailable", False, "MetricsMissing", message)
    return Verdict("MetricsAvailable", True, "Reported", message)


def is_blind(situation: Situation) -> bool:
    """Whether too few replicas report to decide anything."""
    load = situation.load
    return not load.num_reporting or load.coverage < situation.policy.coverage_floor


def _active(situation: Situation) -> Verdict:
    mode = situation.policy.mode
    if mode == "Active":
        return Verdict("AutoscalingActive", True, "Active", "decisions are acted on")
    if mode == "DryRun":
        return Verdict("AutoscalingActive", False, "DryRun", "decisions are recorded and not acted on")
    return Verdict("AutoscalingActive", False, "Paused", "nothing is decided")


def _limited(situation: Situation, wish: Wish, limit: str) -> Verdict:
    unplaced = situation.moving.num_unplaced
    if unplaced:
        message = f"{replicas_text(unplaced)} found no node in time; make room, or lower maxReplicas"
        return Verdict("ScalingLimited", True, "InsufficientCapacity", message)
    hung = situation.moving.num_hung
    if hung:
        message = f"{hung_text(hung)}; see why in the logs of their pods"
        return Verdict("ScalingLimited", True, "ReplicasNotReady", message)
    if limit:
        return Verdict("ScalingLimited", True, limit, wish.message)
    unmet = _out_of_reach(situation)
    if unmet:
        return Verdict("ScalingLimited", True, "PromiseOutOfReach", unmet)
    return Verdict("ScalingLimited", False, "AsWanted", "as many replicas as are wanted are asked for")


def _out_of_reach(situation: Situation) -> str:
    policy, forecast = situation.policy, situation.capacity.at(max(1, situation.base))
    alone, single = forecast.alone_seconds, forecast.single_itl_seconds
    if policy.ttft_p90_seconds is not None and alone is not None and alone >= policy.ttft_p90_seconds:
        what, takes, promised = "slo.ttftP90", alone, policy.ttft_p90_seconds
    elif policy.itl_p90_seconds is not None and single is not None and single >= policy.itl_p90_seconds:
        what, takes, promised = "slo.itlP90", single, policy.itl_p90_seconds
    else:
        return ""
    return (
        f"{what} is {seconds_text(promised)}, and a request alone takes {seconds_text(takes)}:"
        " no number of replicas keeps it; promise more time, or take a faster device or a smaller model"
    )
