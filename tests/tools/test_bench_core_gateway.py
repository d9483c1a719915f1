"""A decision of the gateway is measured beside the hashing of its prompt."""

from __future__ import annotations

from sapwood_tools.bench_core_gateway import route_decision


def test_the_median_and_the_99th_of_100_are_told_beside_the_hashing() -> None:
    middle, late = route_decision(num_decisions=200, capacity_blocks=2_000)
    assert [figure.name.rpartition("_")[2] for figure in (middle, late)] == ["p50", "p99"]
    assert 0 < middle.value < late.value
    assert 0 < middle.baseline < late.baseline
