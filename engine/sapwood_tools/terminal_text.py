"""What a terminal is shown of texts that clients wrote, of counts, and of the parts of a cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KV_STATES = (
    ("active", "being computed"),
    ("protected", "cached and in use"),
    ("evictable", "cached"),
    ("free", "free"),
)
"""(as the API names them, as people read them)"""


def printable(text: str) -> str:
    """Return a client's text as a terminal may show it: no line breaks, no control characters."""
    return text if text.isprintable() else repr(text)


def counted(number: int, noun: str) -> str:
    """Return ``1 token``, ``1,024 tokens``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def namespace_name(namespace: Mapping[str, Any]) -> str:
    """Return the parts that are set; of salt and tenant, which are secrets, only the presence is told."""
    parts = [f"revision {printable(namespace['model_revision'])}"]
    if namespace.get("adapter_id") is not None:
        parts.append(f"adapter {printable(namespace['adapter_id'])}")
    if namespace.get("extra_key") is not None:
        parts.append(f"extra key {printable(namespace['extra_key'])}")
    if namespace.get("tenant_salt") is not None:
        parts.append("a tenant's salt")
    if namespace.get("tenant") is not None:
        parts.append("a tenant")
    return " · ".join(parts)
