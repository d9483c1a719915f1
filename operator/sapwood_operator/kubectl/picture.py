"""What the cluster shows of one service, gathered once; every command draws from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Picture:
    """Live objects, as the API server gave them."""

    service: JsonObject
    objects: tuple[JsonObject, ...] = ()
    """Children, ReplicaSets and pods."""
    events: tuple[JsonObject, ...] = ()
    """About the service itself, in any order."""
    tenants: tuple[JsonObject, ...] = ()
    """Of its namespace, where it asks for API keys."""

    @property
    def name(self) -> str:
        """The service's name."""
        return str(self.service["metadata"]["name"])

    def of_kind(self, kind: str) -> list[JsonObject]:
        """Objects of one kind, by name."""
        return sorted((o for o in self.objects if o["kind"] == kind), key=lambda o: str(o["metadata"]["name"]))

    def conditions(self) -> list[JsonObject]:
        """The conditions in the service's status."""
        return list(self.status.get("conditions") or ())

    def condition(self, type_: str) -> JsonObject:
        """One condition; Unknown where nobody has said anything yet."""
        unknown = {"type": type_, "status": "Unknown", "reason": "NotSeenYet", "message": _NOT_SEEN}
        return next((c for c in self.conditions() if c["type"] == type_), unknown)

    @property
    def status(self) -> JsonObject:
        """The service's status; empty before the operator has seen it."""
        return self.service.get("status") or {}

    @property
    def asks_for_keys(self) -> bool:
        """Whether callers need an API key of a Tenant."""
        return bool(self.section("tenancy").get("authentication") == "ApiKey")

    def section(self, name: str) -> JsonObject:
        """One section of the spec; empty where it is absent."""
        return self.service["spec"].get(name) or {}

    @property
    def behind(self) -> str:
        """What to add where the status is about an older spec, and so says nothing about this one; else empty."""
        seen, generation = self.status.get("observedGeneration", 0), self.service["metadata"].get("generation", 1)
        return "" if seen == generation else f"the operator has seen generation {seen} of {generation}"


def ready_condition(tenant: JsonObject) -> JsonObject:
    """Return the condition Ready of a Tenant; empty where nobody has said anything yet."""
    conditions = (tenant.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == "Ready"), {})


def is_ready_tenant(tenant: JsonObject) -> bool:
    """Whether a Tenant can call with each of its keys."""
    return bool(ready_condition(tenant).get("status") == "True")


_NOT_SEEN = "no operator has looked at this service yet; does one run, and does it watch this namespace?"
