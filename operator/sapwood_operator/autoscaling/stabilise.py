"""How fast the number of replicas may change, and for how long a change makes the caches and latencies say nothing.

All of it follows from the clock and from `State.changes`, which outlive the operator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sapwood_operator.autoscaling.capacity import Capacity
from sapwood_operator.autoscaling.load import Load
from sapwood_operator.autoscaling.values import Change, Observation, Replica, State
from sapwood_operator.domain.scaling_policy import Behavior, Mode, ScalingPolicy

SCHEDULING_SECONDS = 180.0
"""A pod that has waited for a node for longer is not on its way any more."""
STARTING_SECONDS = 900.0
"""Nor is a replica that has loaded for longer."""
LATENCY_REST_SECONDS = 90.0
"""Latencies are of the last minute: after a change they are of both numbers of replicas for so long."""
MOST_SETTLE_SECONDS = 600.0
"""A cache that is renewed slowly would else keep its service as it is for hours."""
BOUNCE_SECONDS = 1800.0
"""A step down that is taken back within that time was a mistake, where the load asked for it back."""
_HOUR = 3600.0
_DAY = 86400.0
LOAD_REASONS = frozenset({"PrefillSpeed", "TimeToFirstToken", "KvMemory", "DecodeSpeed", "PromisedLatency"})
_BOUNCE_MARGIN = 0.9
_AS_MUCH = 1.1
"""Times what a replica had to compute is as much still. What comes in a minute scatters by a tenth on real traces."""
_MOST_TOKENS = 2_000_000_000
"""What the schema of the status takes."""


@dataclass(frozen=True, slots=True)
class Moving:
    """Replicas that are asked for and not ready, or not asked for and still there."""

    num_coming: int
    num_unplaced: int
    """No node takes them, or nobody made their pods."""
    num_hung: int
    """They have a node and do not get ready, and as many as were asked for are not."""
    num_going: int


def begun(since: float | None, now: float) -> float:
    """Return since when something holds that holds now; a clock that went back begins anew."""
    return now if since is None or since > now else since


def heading_for(state: State, current: int, mode: Mode) -> int:
    """Return where the service is going: what was decided last, and in a dry run where that would have led to."""
    return state.desired if mode != "Paused" and state.desired is not None else current


def num_unmade(observation: Observation, asked: int) -> int:
    """Return how many of ``asked`` replicas have no pod."""
    return max(0, asked - sum(each.stage != "leaving" for each in observation.replicas))


def moving(observation: Observation, asked: int, unmade_seconds: float) -> Moving:
    """Sort out what is not as it was asked for; pods have been lacking for ``unmade_seconds``."""
    coming = unplaced = hung = going = seen = ready = 0
    for replica in observation.replicas:
        if replica.stage == "leaving":
            going += 1
            continue
        seen += 1
        if replica.stage == "pending":
            is_late = replica.age_seconds > SCHEDULING_SECONDS
            coming, unplaced = coming + (not is_late), unplaced + is_late
        elif replica.stage == "ready":
            ready += 1
        else:
            is_late = replica.age_seconds > STARTING_SECONDS
            coming, hung = coming + (not is_late), hung + is_late
    unmade = max(0, asked - seen)
    # Of a rollout that is stuck there is more than was asked for: its new pods are missed by nobody.
    going, hung = going + max(0, seen - asked), min(hung, max(0, asked - ready))
    if unmade_seconds > SCHEDULING_SECONDS:
        return Moving(coming, unplaced + unmade, hung, going)
    return Moving(coming + unmade, unplaced, hung, going)


def imagined(moves: Moving, by: int) -> Moving:
    """Add what a dry run has just decided on, ``by`` replicas more or fewer: nobody brings it there."""
    return replace(moves, num_coming=moves.num_coming + max(0, by), num_going=moves.num_going + max(0, -by))


def since_change(changes: Sequence[Change], now: float) -> float:
    """Return the seconds since the number of replicas was last changed; infinite where nobody remembers one."""
    return max(0.0, now - changes[0].at) if changes else math.inf


def since_ready(replicas: Sequence[Replica]) -> float:
    """Return the seconds since a replica last got ready, as far as known."""
    return min((max(0.0, each.age_seconds) for each in replicas if each.stage == "ready"), default=math.inf)


def settle_seconds(policy: ScalingPolicy, load: Load) -> float:
    """Return how long after a change the caches do not count: until they were renewed twice, within bounds."""
    if load.evicted_tokens <= 0:
        return policy.settle_seconds
    turnover = load.num_ready * load.capacity_tokens / load.evicted_tokens
    return max(policy.settle_seconds, min(2.0 * turnover, MOST_SETTLE_SECONDS))


def num_sharing(observation: Observation, changes: Sequence[Change], base: int, *, now: float, settle: float) -> int:
    """Return how many replicas shared the stream that the curves are of: those that have settled, and those that have
    not been gone for longer."""
    ready = [each for each in observation.replicas if each.stage == "ready"]
    settled = sum(each.age_seconds >= settle for each in ready) or len(ready)
    gone = sum(max(0, each.before - each.after) for each in changes if now - each.at < settle)
    return min(settled, base) + gone


def tokens_a_replica(capacity: Capacity, replicas: int) -> float:
    """Return the tokens a second that each of so many would have to compute, of prompts and of answers."""
    load = capacity.load
    return (load.prompt_tokens * (1.0 - capacity.hits.at(replicas)) + load.generation_tokens) / replicas


def learnt(state: State, capacity: Capacity, wish: int, reason: str, now: float) -> int | None:
    """Return `State.too_many_tokens` after a decision.

    A number of replicas that latencies called too few would be called enough by the model as soon as there are more,
    and so on for ever. So what a replica had to compute is remembered where a step down is taken back although no more
    came than when it was decided on: for a day, and for an hour once other changes followed. Where more came it is no
    mistake, and nothing is learnt. Chance makes it the least that it may have been, and `tried` the most. What is
    remembered says nothing as soon as there is less to compute, be it that less comes or that more of it is hit.
    """
    changes = state.changes
    before = wish - 1 if state.desired is None else state.desired
    was_asked_back = bool(changes) and _takes_back(changes[0], now)
    if wish > before > 0 and reason in LOAD_REASONS and was_asked_back:
        tokens = tokens_a_replica(capacity, before) / (1.0 + scatter(capacity.load))
        if state.tried_tokens is None or tokens <= _AS_MUCH * state.tried_tokens:
            return min(_MOST_TOKENS, int(tokens))
    if not changes:
        return None
    was_taken_back = len(changes) > 1 and _takes_back(changes[1], changes[0].at)
    return state.too_many_tokens if now - changes[0].at < (_DAY if was_taken_back else _HOUR) else None


def tried(state: State, capacity: Capacity, wish: int, reason: str) -> int | None:
    """Return `State.tried_tokens` after a decision."""
    before = state.desired
    if reason != "LoadFell" or wish < 1 or (before is not None and wish >= before):
        return state.tried_tokens
    return min(_MOST_TOKENS, int(tokens_a_replica(capacity, wish) * (1.0 + scatter(capacity.load))))


def scatter(load: Load) -> float:
    """Return by what share the load of a window may differ from its mean by chance: three standard deviations of a sum
    of so many requests, whose sizes scatter as much as they are large."""
    return 3.0 * math.sqrt(2.0 / max(1.0, load.num_arrived))


def _takes_back(change: Change, now: float) -> bool:
    return change.reason == "LoadFell" and now - change.at < BOUNCE_SECONDS


def was_too_few(state: State, capacity: Capacity, replicas: int) -> bool:
    """Whether so many would have nearly as much to compute as was too much when that was tried."""
    known = state.too_many_tokens
    return known is not None and tokens_a_replica(capacity, replicas) >= _BOUNCE_MARGIN * known


def within_steps(behavior: Behavior, base: int, wanted: int, *, changes: Sequence[Change], now: float) -> int:
    """Return the number next to ``wanted`` that the limits of a step from ``base`` allow."""
    if behavior.select == "Disabled":
        return base
    if not behavior.limits or wanted == base:
        return wanted
    is_up = wanted > base
    reach = [
        _reach(limit.type, limit.value, _moved(changes, now - limit.period_seconds, is_up), base, is_up)
        for limit in behavior.limits
    ]
    if is_up:
        furthest = max(reach) if behavior.select == "Max" else min(reach)
        return max(base, min(wanted, furthest))
    furthest = min(reach) if behavior.select == "Max" else max(reach)
    return min(base, max(wanted, furthest))


def _moved(changes: Sequence[Change], since: float, is_up: bool) -> int:
    """Return by how many replicas the number went in one direction since then."""
    steps = (change.after - change.before for change in changes if change.at > since)
    return sum(step for step in steps if (step > 0) == is_up)


def _reach(kind: str, value: int, moved: int, base: int, is_up: bool) -> int:
    begin = base - moved
    by = value if kind == "Replicas" else begin * value / 100
    return math.ceil(begin + by) if is_up else math.floor(begin - by)
