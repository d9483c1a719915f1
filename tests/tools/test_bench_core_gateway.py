"""What the gateway does with a request is measured beside the hashing of its prompt."""

from __future__ import annotations

from sapwood_tools.bench_core_gateway import request_noted, route_decision


def test_the_median_and_the_99th_of_100_are_told_beside_the_hashing() -> None:
    middle, late = route_decision(num_decisions=200, capacity_blocks=2_000)
    assert [figure.name.rpartition("_")[2] for figure in (middle, late)] == ["p50", "p99"]
    assert 0 < middle.value < late.value
    assert 0 < middle.baseline < late.baseline


def test_noting_a_request_is_told_beside_the_hashing_of_its_prompt() -> None:
    (figure,) = request_noted(repetitions=3)
    assert 0 < figure.value < figure.baseline
