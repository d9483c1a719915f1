"""How many replicas a service may come to have on this machine: they share its cores and its memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sapwood_operator.domain.policies import named_policy
from sapwood_operator.local.world import JsonObject


def most_replicas(service: JsonObject, policies: Iterable[JsonObject], deployment: JsonObject) -> int:
    """Return the number that an engine has to leave room for.

    ``policies``: all AutoscalingPolicies of the files; ``deployment``: of the service, as it is now.
    """
    now = int(deployment["spec"]["replicas"])
    rule = _rule(service, policies)
    acts = rule.get("mode", "Active") == "Active"
    return max(now, int(rule["maxReplicas"])) if rule and acts else now


def _rule(service: JsonObject, policies: Iterable[JsonObject]) -> JsonObject:
    name, namespace = named_policy(service), service["metadata"]["namespace"]
    if not name:
        rule: Any = service["spec"].get("autoscaling")
        return rule or {}
    found = (each["spec"] for each in policies if _is_named(each, namespace, name))
    return next(found, {})


def _is_named(policy: JsonObject, namespace: str, name: str) -> bool:
    return (policy["metadata"]["namespace"], policy["metadata"]["name"]) == (namespace, name)
