"""What is said of a service: a table of rules for each condition; the first rule that holds decides.

Every rule is a sentence. `operator/README.md` shows the same table, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sapwood_operator.domain.obstacles import NO_OBSTACLE, NoObstacle, Obstacle
from sapwood_operator.domain.workload import Workload

Truth = Literal["True", "False", "Unknown"]
_MAX_MESSAGE_CHARACTERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that the rules look at."""

    workload: Workload
    refusal: Obstacle | NoObstacle = NO_OBSTACLE
    """What keeps the operator from making what the spec asks for."""
    missing_api: Obstacle | NoObstacle = NO_OBSTACLE
    """A child that the cluster has no API for."""
    unsupported: tuple[str, ...] = ()
    wakes: bool = False
    """Whether a request that comes while there is no replica makes one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition without its times."""

    status: Truth
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a table."""

    sentence: str
    holds: Callable[[Facts], bool]
    say: Callable[[Facts], Verdict]


def _as_obstacle(status: Truth, found: Callable[[Facts], Obstacle | NoObstacle]) -> Callable[[Facts], Verdict]:
    """Say an obstacle's own reason and message."""

    def say(facts: Facts) -> Verdict:
        obstacle = found(facts)
        assert isinstance(obstacle, Obstacle), "a rule says only what it found"
        return Verdict(status, obstacle.reason, obstacle.message)

    return say


def _blocked(facts: Facts) -> Verdict:
    obstacle = facts.workload.obstacle
    assert isinstance(obstacle, Obstacle), "a rule says only what it found"
    ready, wanted = facts.workload.ready, facts.workload.wanted
    who = "replicas of the former revision go on serving" if facts.workload.old else "replicas serve"
    return Verdict("False", obstacle.reason, f"{obstacle.message}. {ready} of {wanted} {who}")


def _fixed(status: Truth, reason: str, message: str) -> Callable[[Facts], Verdict]:
    return lambda _facts: Verdict(status, reason, message)


def _refused(facts: Facts) -> bool:
    return isinstance(facts.refusal, Obstacle)


def _hindered(facts: Facts) -> bool:
    return isinstance(facts.workload.obstacle, Obstacle)


def _refusal(facts: Facts) -> Obstacle | NoObstacle:
    return facts.refusal


def _hindrance(facts: Facts) -> Obstacle | NoObstacle:
    return facts.workload.obstacle


def _missing_api(facts: Facts) -> Obstacle | NoObstacle:
    return facts.missing_api


SERVING = (
    Rule(
        "a replica is ready and not about to go",
        lambda f: f.workload.serving > 0,
        lambda f: Verdict(
            "True", "ReplicasReady", f"{f.workload.serving} of {f.workload.wanted} replicas take requests"
        ),
    ),
    Rule(
        "no replica is wanted, and the next request wakes one",
        lambda f: f.workload.wanted == 0 and f.wakes,
        _fixed("False", "ScaledToZero", "nobody asks; the gateway holds the next request until a replica is up"),
    ),
    Rule(
        "no replica is wanted",
        lambda f: f.workload.wanted == 0,
        _fixed("False", "NoReplicasWanted", "the service is scaled to zero; raise spec.replicas to serve"),
    ),
    Rule("otherwise", lambda _: True, _fixed("False", "NoReplicaReady", "no replica takes requests yet")),
)
READY = (
    Rule("the operator cannot make what the spec asks for", _refused, _as_obstacle("False", _refusal)),
    Rule(
        "there is no Deployment yet",
        lambda f: not f.workload.exists,
        _fixed("False", "Creating", "the Deployment is being made"),
    ),
    Rule(
        "the Deployment is behind the spec, or its controller behind the Deployment",
        lambda f: not f.workload.settled,
        _fixed("False", "Updating", "the Deployment is being brought to this generation"),
    ),
    Rule("a pod cannot get ready", _hindered, _blocked),
    Rule(
        "pods of a former revision are left",
        lambda f: f.workload.old > 0,
        lambda f: Verdict(
            "False",
            "RolloutInProgress",
            f"{f.workload.updated} of {f.workload.wanted} replicas are of this revision, {f.workload.old} are older",
        ),
    ),
    Rule(
        "fewer replicas are there, ready or available than wanted",
        lambda f: min(f.workload.updated, f.workload.ready, f.workload.available) < f.workload.wanted,
        lambda f: Verdict("False", "ReplicasStarting", f"{f.workload.ready} of {f.workload.wanted} replicas are ready"),
    ),
    Rule(
        "more replicas are there than wanted",
        lambda f: f.workload.total > f.workload.wanted,
        lambda f: Verdict(
            "False", "ReplicasLeaving", f"{f.workload.total} replicas are there, {f.workload.wanted} are wanted"
        ),
    ),
    Rule(
        "otherwise",
        lambda _: True,
        lambda f: Verdict("True", "AllReplicasReady", f"all {f.workload.wanted} replicas are ready at this generation"),
    ),
)
DEGRADED = (
    Rule("the operator cannot make what the spec asks for", _refused, _as_obstacle("True", _refusal)),
    Rule("a pod cannot get ready", _hindered, _as_obstacle("True", _hindrance)),
    Rule(
        "the cluster lacks an API that the spec relies on",
        lambda f: isinstance(f.missing_api, Obstacle),
        _as_obstacle("True", _missing_api),
    ),
    Rule("otherwise", lambda _: True, _fixed("False", "AsExpected", "nothing needs attention")),
)
MODEL_AVAILABLE = (
    Rule(
        "a pod cannot get at the model",
        lambda f: isinstance(f.workload.obstacle, Obstacle) and f.workload.obstacle.about_model,
        _as_obstacle("False", _hindrance),
    ),
    Rule(
        "a replica of this revision is ready",
        lambda f: f.workload.model_loaded,
        _fixed("True", "Loaded", "a replica of this revision has loaded the model"),
    ),
    Rule("otherwise", lambda _: True, _fixed("Unknown", "NotLoadedYet", "no replica of this revision is ready")),
)
DRAINING = (
    Rule(
        "pods finish their requests",
        lambda f: f.workload.draining > 0,
        lambda f: Verdict(
            "True", "FinishingRequests", f"replicas that finish their requests before they go: {f.workload.draining}"
        ),
    ),
    Rule("otherwise", lambda _: True, _fixed("False", "NoneLeaving", "no replica is leaving")),
)
UNSUPPORTED = (
    Rule(
        "a field asks for what is not built yet",
        lambda f: bool(f.unsupported),
        lambda f: Verdict("True", "NotBuiltYet", f"nothing acts on these fields yet: {', '.join(f.unsupported)}"),
    ),
    Rule("otherwise", lambda _: True, _fixed("False", "AllSupported", "every field that is given is acted on")),
)
TABLE: Mapping[str, Sequence[Rule]] = {
    "Ready": READY,
    "Serving": SERVING,
    "ModelAvailable": MODEL_AVAILABLE,
    "Degraded": DEGRADED,
    "Draining": DRAINING,
    "Unsupported": UNSUPPORTED,
}
"""Condition type -> its rules, in the order in which the conditions stand in status."""


def judge(facts: Facts) -> dict[str, Verdict]:
    """Return the verdict of every condition."""
    return {type_: next(rule.say(facts) for rule in rules if rule.holds(facts)) for type_, rules in TABLE.items()}


def write_conditions(
    verdicts: Mapping[str, Verdict], former: Sequence[Mapping[str, Any]], *, generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Return status.conditions; those of ``former`` that the table does not have are kept as they are.

    ``now``: with a time zone. `lastTransitionTime` changes with ``status`` alone, so that equal facts give equal
    conditions.
    """
    before = {condition["type"]: condition for condition in former}
    written = []
    for type_, verdict in verdicts.items():
        known = before.pop(type_, {})
        stays = known.get("status") == verdict.status and known.get("lastTransitionTime")
        written.append(
            {
                "type": type_,
                "status": verdict.status,
                "reason": verdict.reason,
                "message": verdict.message[:_MAX_MESSAGE_CHARACTERS],
                "observedGeneration": generation,
                "lastTransitionTime": known["lastTransitionTime"] if stays else _timestamp(now),
            }
        )
    return written + [dict(condition) for condition in before.values()]


def _timestamp(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
