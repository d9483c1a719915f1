"""What is said of the Tenants of a namespace: which of their keys the gateway takes, and why others not.

Keys in Secrets are the gateway's to read: the operator names them, and says what the gateway needs for that. All others
are judged together, for a key that two of them have is nobody's. The gateway judges the same objects by itself
(`sapwood_gateway.core.tenant_documents`): no request waits for a status.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sapwood_operator.domain.conditions import Verdict, write_conditions
from sapwood_operator.domain.observed import is_leaving

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFacts:
    """What the rules look at, of one Tenant. Keys by their names."""

    is_suspended: bool
    in_force: tuple[str, ...]
    """Keys that mean this tenant and no other of the namespace."""
    in_secrets: tuple[str, ...]
    """``KEY (Secret NAME)``: keys whose hash is in a Secret."""
    shared: tuple[str, ...]
    """``KEY with OTHER``: keys that other tenants of the namespace have too."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table."""

    sentence: str
    holds: Callable[[TenantFacts], bool]
    say: Callable[[TenantFacts], Verdict]


READY = (
    Rule(
        "`suspended` is true",
        lambda f: f.is_suspended,
        lambda _: Verdict("False", "Suspended", "every call is refused; set spec.suspended to false to allow them"),
    ),
    Rule(
        "there is no key",
        lambda f: not (f.in_force or f.in_secrets or f.shared),
        lambda _: Verdict("False", "NoKeys", "nobody can call as this tenant; give spec.apiKeys a key"),
    ),
    Rule(
        "another Tenant of the namespace has one of its keys",
        lambda f: bool(f.shared),
        lambda f: Verdict(
            "False",
            "KeyConflict",
            f"keys that are refused, for nobody can tell whose they are: {'; '.join(f.shared)}; give each key to one "
            f"Tenant. {_known(f)}",
        ),
    ),
    Rule(
        "otherwise",
        lambda _: True,
        lambda f: Verdict("True", "Ready", _known(f)),
    ),
)
"""Of the condition Ready; the first rule that holds decides. `operator/README.md` shows the same table."""


def _known(facts: TenantFacts) -> str:
    said = f"Keys in force: {', '.join(facts.in_force) or 'none'}"
    if facts.in_secrets:
        said += (
            f". The gateway takes from Secrets: {', '.join(facts.in_secrets)}. It may read those alone that the "
            "chart's gateway.tenants.keySecrets names, and logs what it cannot use"
        )
    return said


def status_changes(tenants: Sequence[JsonObject], now: datetime) -> list[tuple[JsonObject, JsonObject]]:
    """Return (Tenant, its status to write) for those whose status is not as it should be.

    ``tenants``: all of one namespace. One that is being deleted still has its keys, and gets no status.
    """
    owners: dict[str, list[str]] = defaultdict(list)
    for tenant in tenants:
        for sha256 in {key["sha256"] for key in _keys(tenant) if "sha256" in key}:
            owners[sha256].append(tenant["metadata"]["name"])
    changes = []
    for tenant in tenants:
        before = tenant.get("status") or {}
        after = _status(tenant, before, _facts(tenant, owners), now)
        if after != before and not is_leaving(tenant):
            changes.append((tenant, after))
    return changes


def _keys(tenant: JsonObject) -> Sequence[JsonObject]:
    return tenant["spec"].get("apiKeys") or ()


def _facts(tenant: JsonObject, owners: Mapping[str, Collection[str]]) -> TenantFacts:
    own_name = tenant["metadata"]["name"]
    in_force, in_secrets, shared = [], [], []
    for key in _keys(tenant):
        others = sorted(name for name in owners.get(key.get("sha256", ""), ()) if name != own_name)
        if "sha256" not in key:
            in_secrets.append(f"{key['name']} (Secret {key['sha256SecretRef']['name']})")
        elif others:
            shared.append(f"{key['name']} with {', '.join(others)}")
        else:
            in_force.append(key["name"])
    return TenantFacts(
        is_suspended=bool(tenant["spec"].get("suspended")),
        in_force=tuple(in_force),
        in_secrets=tuple(in_secrets),
        shared=tuple(shared),
    )


def _status(tenant: JsonObject, before: JsonObject, facts: TenantFacts, now: datetime) -> JsonObject:
    generation = tenant["metadata"].get("generation", 1)
    verdict = next(rule.say(facts) for rule in READY if rule.holds(facts))
    conditions = write_conditions({"Ready": verdict}, before.get("conditions") or (), generation=generation, now=now)
    return {**before, "observedGeneration": generation, "keys": len(facts.in_force), "conditions": conditions}
