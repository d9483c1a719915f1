"""AutoscalingPolicies: who follows one, and what is said of it.

Those of a namespace are looked at together with its services: a policy tells how many services name it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sapwood_operator.domain.conditions import Verdict, write_conditions
from sapwood_operator.domain.fields import Fields
from sapwood_operator.domain.observed import is_leaving
from sapwood_operator.domain.scaling_policy import ScalingPolicy, read_scaling_policy
from sapwood_operator.errors import InvalidSpec

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """What the rules look at, of one policy."""

    policy: ScalingPolicy | InvalidSpec


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table."""

    sentence: str
    holds: Callable[[PolicyFacts], bool]
    say: Callable[[PolicyFacts], Verdict]


READY = (
    Rule(
        "a field cannot be used",
        lambda f: isinstance(f.policy, InvalidSpec),
        lambda f: Verdict("False", "InvalidSpec", f"{f.policy}; services that name the policy hold their replicas"),
    ),
    Rule(
        "otherwise",
        lambda _: True,
        lambda _: Verdict("True", "Ready", "services that name the policy follow it"),
    ),
)
"""Of the condition Ready; the first rule that holds decides. `operator/README.md` shows the same table."""


def named_policy(service: JsonObject) -> str:
    """Return the name of the policy that a live InferenceService follows; empty where it names none."""
    value: Any = service
    for step in ("spec", "autoscaling", "policyRef", "name"):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""


def read_policy(policy: JsonObject) -> ScalingPolicy | InvalidSpec:
    """Return the rule of a live AutoscalingPolicy, or what is wrong with it."""
    try:
        return read_scaling_policy(Fields(policy, "").inner("spec"))
    except InvalidSpec as error:
        return error


def status_changes(
    policies: Sequence[JsonObject], services: Iterable[JsonObject], now: datetime
) -> list[tuple[JsonObject, JsonObject]]:
    """Return (AutoscalingPolicy, its status to write) for those whose status is not as it should be.

    ``policies`` and ``services``: all of one namespace.
    """
    followers = Counter(named_policy(service) for service in services if not is_leaving(service))
    changes = []
    for policy in policies:
        before = policy.get("status") or {}
        after = _status(policy, before, followers[policy["metadata"]["name"]], now)
        if after != before and not is_leaving(policy):
            changes.append((policy, after))
    return changes


def _status(policy: JsonObject, before: JsonObject, num_services: int, now: datetime) -> JsonObject:
    generation = policy["metadata"].get("generation", 1)
    facts = PolicyFacts(read_policy(policy))
    verdict = next(rule.say(facts) for rule in READY if rule.holds(facts))
    conditions = write_conditions({"Ready": verdict}, before.get("conditions") or (), generation=generation, now=now)
    return {**before, "observedGeneration": generation, "services": num_services, "conditions": conditions}
