"""Decides how many replicas a service is to have: a function of the policy, what is seen, what is remembered, and now.

The rules, the first that holds:

1. A paused policy decides nothing.
2. A service without a replica gets one when requests wait; one that nobody uses goes to none, if it may.
3. Where too few replicas report the number is held, and after ``holdFor`` rises to ``fallbackReplicas``.
4. More, as far as window and steps allow, where the load needs it, what was promised is near, or a cache would pay.
5. One fewer, where that has sufficed for the whole window.

Whatever is decided is within ``minReplicas`` and ``maxReplicas``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sapwood_operator.autoscaling.explain import replicas_text, seconds_text
from sapwood_operator.autoscaling.fewer import Against, breaks_window, holds, pending_sentence
from sapwood_operator.autoscaling.more import Wish, more
from sapwood_operator.autoscaling.situation import Situation, situation_of
from sapwood_operator.autoscaling.stabilise import begun, learnt, tried, within_steps
from sapwood_operator.autoscaling.state import MOST_CHANGES
from sapwood_operator.autoscaling.strain import Strain, strains
from sapwood_operator.autoscaling.telling import inputs_of, is_blind, predicted_of, rejected_of, verdicts_of
from sapwood_operator.autoscaling.values import Change, Decision, Observation, State
from sapwood_operator.autoscaling.zero import at_zero, to_zero, waking_since
from sapwood_operator.domain.scaling_policy import ScalingPolicy


def decide(policy: ScalingPolicy, observation: Observation, state: State, now: float) -> Decision:
    """Return how many replicas are wanted at ``now`` (Unix time), why, and what to remember. Mutates nothing."""
    situation = situation_of(policy, observation, state, now)
    ruled = _in_bounds(situation, _ruled(situation))
    wish = ruled.wish
    return Decision(
        desired=wish.replicas,
        acts=policy.mode == "Active",
        reason=wish.reason,
        message=wish.message,
        inputs=inputs_of(situation),
        predicted=predicted_of(situation),
        rejected=rejected_of(situation, wish, ruled.why_not_fewer),
        verdicts=verdicts_of(situation, wish, ruled.limit),
        state=_remembered(situation, ruled),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ruled:
    """What the rules come to, and the clocks that run on."""

    wish: Wish
    fewer_since: float | None = None
    more_since: float | None = None
    more_least: int | None = None
    blind_since: float | None = None
    limit: str = ""
    """Why the service does not get what it should, empty where it does."""
    why_not_fewer: str = ""


def _ruled(situation: Situation) -> _Ruled:
    if situation.policy.mode == "Paused":
        return _Ruled(wish=Wish(situation.base, "Paused", "the policy is paused"))
    if situation.base == 0:
        return _Ruled(wish=at_zero(situation))
    none = to_zero(situation)
    if none is not None:
        return _Ruled(wish=none)
    if situation.load.num_ready == 0:
        return _Ruled(wish=_starting(situation))
    if is_blind(situation):
        return _blind(situation)
    strained = strains(situation)
    wanted = more(situation, strained)
    if wanted is not None:
        return _grow(situation, wanted)
    return _shrink(situation, strained)


def _starting(situation: Situation) -> Wish:
    if situation.moving.num_unplaced:
        return Wish(situation.base, "InsufficientCapacity", "no node takes the replicas that were asked for")
    return Wish(situation.base, "ReplicasPending", pending_sentence(situation) or "no replica is ready")


def _blind(situation: Situation) -> _Ruled:
    """Hold, then rise to the fallback; replicas that got ready just now are waited for without that clock."""
    load, policy, base = situation.load, situation.policy, situation.base
    message = f"{load.num_reporting} of {replicas_text(load.num_ready)} reported"
    if not load.num_missing:
        return _Ruled(wish=Wish(base, "MetricsMissing", f"{message}; they got ready just now"))
    since = begun(situation.state.blind_since, situation.now)
    lasted = situation.now - since
    fallback = policy.fallback_replicas
    if fallback is not None and lasted >= policy.hold_seconds:
        wish = Wish(max(base, fallback), "Fallback", f"{message}, for {seconds_text(lasted)}")
    else:
        wish = Wish(base, "MetricsMissing", message)
    return _Ruled(wish=wish, blind_since=since)


def _grow(situation: Situation, wanted: Wish) -> _Ruled:
    base, state, now, behavior = situation.base, situation.state, situation.now, situation.policy.up
    if wanted.replicas <= base:
        return _Ruled(wish=wanted, limit=wanted.reason)
    if situation.moving.num_unplaced:
        wish = Wish(base, "InsufficientCapacity", f"{wanted.message}; no node takes those asked for already")
        return _Ruled(wish=wish, limit=wish.reason)
    since = begun(state.more_since, now)
    least = wanted.replicas if state.more_least is None else min(state.more_least, wanted.replicas)
    window = max(behavior.window_seconds, wanted.window_seconds)
    if now - since < window:
        wish = Wish(base, "Stabilizing", f"{wanted.message}; this has to last for {seconds_text(window)}")
        return _Ruled(wish=wish, more_since=since, more_least=least)
    target = max(base + 1, least) if window else wanted.replicas
    allowed = within_steps(behavior, base, target, changes=situation.changes, now=now)
    limit = "StepLimit" if allowed < target else wanted.reason if wanted.reason == "Maximum" else ""
    if allowed == base:
        wish = Wish(base, "StepLimit", f"{wanted.message}; scaleUp allows no step now")
        return _Ruled(wish=wish, more_since=since, more_least=least, limit=limit)
    return _Ruled(wish=Wish(allowed, wanted.reason, wanted.message), more_since=since, more_least=least, limit=limit)


def _shrink(situation: Situation, strained: tuple[Strain, ...]) -> _Ruled:
    base, now = situation.base, situation.now
    against = breaks_window(situation, strained)
    if against is not None:
        return _Ruled(wish=Wish(base, against.reason, against.message), why_not_fewer=against.message)
    since = begun(situation.state.fewer_since, now)
    waits = holds(situation) or _window(situation, now - since)
    if waits is not None:
        return _Ruled(wish=Wish(base, waits.reason, waits.message), fewer_since=since, why_not_fewer=waits.message)
    if within_steps(situation.policy.down, base, base - 1, changes=situation.changes, now=now) == base:
        message = f"{replicas_text(base - 1)} would do; scaleDown allows no step now"
        return _Ruled(
            wish=Wish(base, "StepLimit", message), fewer_since=since, limit="StepLimit", why_not_fewer=message
        )
    message = f"{replicas_text(base - 1)} would have sufficed for {seconds_text(now - since)}"
    return _Ruled(wish=Wish(base - 1, "LoadFell", message), fewer_since=since)


def _window(situation: Situation, lasted: float) -> Against | None:
    window = situation.policy.down.window_seconds
    if lasted >= window:
        return None
    fewer = replicas_text(situation.base - 1)
    return Against("Stabilizing", f"{fewer} would do; this has to last for {seconds_text(window)}")


def _in_bounds(situation: Situation, ruled: _Ruled) -> _Ruled:
    """Say so where the bounds alone brought the service to where it is."""
    wish, base = ruled.wish, situation.base
    replicas = min(max(wish.replicas, situation.low), situation.high)
    heading = situation.heading
    if replicas != base or heading == base or situation.policy.mode == "Paused":
        return ruled if replicas == wish.replicas else replace(ruled, wish=replace(wish, replicas=replicas))
    if heading < base:
        return replace(ruled, wish=Wish(base, "Minimum", f"there were {heading}, minReplicas is {situation.low}"))
    message = f"there were {heading}, maxReplicas is {situation.high}"
    return replace(ruled, wish=Wish(base, "Maximum", message), limit="Maximum")


def _remembered(situation: Situation, ruled: _Ruled) -> State:
    """Return the state after the decision; a change begins all clocks anew."""
    state, wish, now = situation.state, ruled.wish, situation.now
    before = situation.observation.current if state.desired is None else state.desired
    changes = state.changes
    has_changed = wish.replicas != before and situation.policy.mode != "Paused"
    if has_changed:
        changes = (Change(now, before, wish.replicas, wish.reason, wish.message), *changes)[:MOST_CHANGES]
    return State(
        desired=wish.replicas,
        fewer_since=None if has_changed else ruled.fewer_since,
        more_since=None if has_changed else ruled.more_since,
        more_least=None if has_changed else ruled.more_least,
        waking_since=waking_since(situation, wish),
        blind_since=ruled.blind_since,
        unmade_since=situation.unmade_since,
        tried_tokens=tried(state, situation.capacity, wish.replicas, wish.reason),
        too_many_tokens=learnt(state, situation.capacity, wish.replicas, wish.reason, now),
        changes=changes,
    )
