"""The time as the Kubernetes API writes it."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """Return the time as RFC 3339, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_exactly() -> str:
    """Return the time as RFC 3339, to the microsecond, as leases have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
