"""The Lease in memory keeps the rules of a Lease (e2e holds the API server's to the same ones)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support_leases import LEASE_STORE_RULES, MemoryLease

from sapwood_operator.adapters.lease import LeaseStore


@pytest.mark.parametrize("rule", LEASE_STORE_RULES, ids=lambda rule: rule.__name__)
def test_a_lease_in_memory_keeps_the_rules(rule: Callable[[LeaseStore], None]) -> None:
    rule(MemoryLease())
