"""The engines' own ServiceAccount: it may do nothing, and no pod gets its token unless ``podTemplate`` asks for it."""

from __future__ import annotations

from typing import Any

from sapwood_operator.domain import names
from sapwood_operator.domain.children.base import child
from sapwood_operator.domain.spec import ServiceSpec

API_VERSION, KIND = "v1", "ServiceAccount"


def service_account(spec: ServiceSpec) -> dict[str, Any]:
    """Return the ServiceAccount."""
    return child(API_VERSION, KIND, names.engine(spec.name), spec, automountServiceAccountToken=False)
