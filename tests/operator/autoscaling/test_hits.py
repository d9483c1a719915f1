"""What the caches of another number of replicas would hit, against caches that are simulated."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Sequence

import pytest
from support_scaling import CAPACITY, curve_of, no_demand, reading, replica, service, straight_curve

from sapwood_contract.curve import Curve, hit_ratio_at
from sapwood_operator.autoscaling.hits import Hits, Weighed, affinity_of, hits_at, hits_of, reused, uses_of
from sapwood_operator.autoscaling.load import hear
from sapwood_operator.autoscaling.values import Demand

SIZE = 200
"""Items that one replica's cache holds."""


def stream(length: int = 20_000, *, items: int = 3000, seed: int = 7) -> list[int]:
    """Items, some far more popular than others, as prefixes are."""
    weights = [1 / (rank + 10) for rank in range(items)]
    return random.Random(seed).choices(range(items), weights, k=length)


def simulated(accesses: Sequence[int], size: float) -> float:
    """Return what an LRU cache hits of the second half of its stream."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for position, item in enumerate(accesses):
        if item in cache:
            cache.move_to_end(item)
            hits += position >= len(accesses) / 2
        else:
            cache[item] = None
            if len(cache) > size:
                cache.popitem(last=False)
    return hits / (len(accesses) / 2)


def parts(accesses: Sequence[int], replicas: int) -> list[list[int]]:
    """Return what each replica gets where every item has one of its own."""
    return [[item for item in accesses if item * 2654435761 % 2**32 % replicas == number] for number in range(replicas)]


def at_random(accesses: Sequence[int], replicas: int) -> list[list[int]]:
    """Return what each replica gets where requests go around."""
    return [list(accesses[number::replicas]) for number in range(replicas)]


def measured(accesses: Sequence[int]) -> Curve:
    """Return the curve of one replica that got these."""
    sizes = [SIZE * 2 ** (step / 2) for step in range(-6, 9)]
    return curve_of([(size, simulated(accesses, size)) for size in sizes], simulated(accesses, math.inf), SIZE)


def together(streams: Sequence[Sequence[int]], size: float) -> float:
    """Return what replicas with caches of ``size`` hit of all."""
    whole = sum(len(each) for each in streams)
    return sum(simulated(each, size) * len(each) for each in streams) / whole


def hits(curves: Sequence[tuple[Curve, float]], **given: float) -> Hits:
    """Merge curves of replicas that hold `SIZE`."""
    return Hits(
        curves=tuple(Weighed(curve, weight, float(SIZE)) for curve, weight in curves),
        num_measured=len(curves),
        affinity=given.get("affinity", 1.0),
        measured=given.get("measured", 0.0),
        memory_factor=given.get("memory_factor", 1.0),
    )


@pytest.mark.parametrize("now", [1, 2, 4])
def test_the_curves_of_n_replicas_foretell_what_another_number_hits_with_prefix_affinity(now: int) -> None:
    accesses = stream()
    seen = parts(accesses, now)
    foretold = hits([(measured(each), len(each)) for each in seen])
    for then in (1, 2, 4, 8):
        assert foretold.at(then) == pytest.approx(together(parts(accesses, then), SIZE), abs=0.02)


def test_a_replica_whose_memory_were_twice_as_large_hits_what_two_would() -> None:
    accesses = stream()
    seen = parts(accesses, 2)
    foretold = hits([(measured(each), len(each)) for each in seen], memory_factor=2.0)
    assert foretold.at(2) == pytest.approx(together(seen, 2 * SIZE), abs=0.02)


def test_round_robin_over_more_replicas_hits_less_as_foretold() -> None:
    accesses = [item for item in stream() if item < 400]
    seen = at_random(accesses, 2)
    foretold = hits([(measured(each), len(each)) for each in seen], affinity=0.0)
    for then in (1, 2, 4, 8):
        assert foretold.at(then) == pytest.approx(together(at_random(accesses, then), SIZE), abs=0.05)
    assert foretold.at(8) < foretold.at(4) < foretold.at(2)


def test_a_prefix_that_comes_k_times_is_computed_once_on_each_replica_that_it_meets() -> None:
    assert reused(4.0, 1) == pytest.approx(3 / 4)
    assert reused(1.0, 3) == 0.0
    assert uses_of(reused(6.0, 4), 4) == pytest.approx(6.0, rel=1e-3)


def test_without_a_curve_fewer_replicas_are_taken_to_hit_as_little_as_they_can() -> None:
    blind = Hits(curves=(), num_measured=4, affinity=1.0, measured=0.6)
    assert [round(blind.at(number), 3) for number in (1, 2, 4, 8)] == [0.15, 0.3, 0.6, 0.6]
    assert not blind.has_curve


def test_a_curve_that_says_less_than_is_hit_says_only_how_that_changes_with_the_number() -> None:
    lagging = straight_curve(0.2, 0.8, SIZE)
    late = hits([(lagging, 1.0), (lagging, 1.0)], measured=0.6)
    assert [round(late.at(number), 3) for number in (1, 2, 3, 4)] == [0.3, 0.6, 0.65, 0.7]


def test_a_curve_that_says_more_than_is_hit_is_believed_for_caches_may_be_cold() -> None:
    curve = straight_curve(0.2, 0.8, SIZE)
    assert hits([(curve, 1.0), (curve, 1.0)], measured=0.1).at(2) == pytest.approx(0.2)


def test_what_is_hit_with_a_newcomer_is_compared_with_the_curve_at_that_number() -> None:
    curve = straight_curve(0.2, 0.8)
    old, young = replica(0, reading(curve=curve)), replica(1, reading(curve=curve), age=30.0)
    heard = hear(service(others=(old, young)))
    merged = hits_of(heard, num_measured=1, num_serving=2, measured=0.4, affinity=1.0, settle_seconds=120.0)
    assert [merged.at(1), merged.at(2)] == pytest.approx([0.2, 0.4])


def test_a_curve_that_makes_no_sense_is_none() -> None:
    broken = curve_of([(SIZE, math.nan), (2 * SIZE, math.inf)], math.nan)
    assert hits([(broken, 1.0)], measured=0.4).at(1) == 0.4


@pytest.mark.parametrize("capacity", [0.0, 1.0, 100_000.0, 150_000.0, 1e7, math.inf])
def test_bisection_reads_the_curve_as_the_contract_does(capacity: float) -> None:
    curve = curve_of([(50_000.0, 0.2), (100_000.0, 0.4), (200_000.0, 0.5)], 0.7)
    assert hits_at(curve.points, capacity) == pytest.approx(hit_ratio_at(curve, capacity))


def test_a_young_replicas_curve_counts_only_where_there_is_no_older_one() -> None:
    old = replica(0, reading(curve=straight_curve(0.5, 0.8)))
    young = replica(1, reading(curve=straight_curve(0.1, 0.2)), age=30.0)
    for replicas, expected in (((old, young), 0.5), ((young,), 0.1)):
        heard = hear(service(others=replicas))
        merged = hits_of(heard, num_measured=1, measured=0.0, affinity=1.0, settle_seconds=120.0)
        assert merged.at(1) == pytest.approx(expected)


def test_a_replica_speaks_for_as_much_of_the_stream_as_it_got() -> None:
    low, high = straight_curve(0.2, 0.8), straight_curve(0.6, 0.8)
    merged = Hits(
        curves=(Weighed(low, 3.0, CAPACITY), Weighed(high, 1.0, CAPACITY)), num_measured=2, affinity=1.0, measured=0.0
    )
    assert merged.at(2) == pytest.approx((3 * 0.2 + 0.6) / 4)


@pytest.mark.parametrize(
    ("demand", "by_prefix", "affinity"),
    [
        (Demand(num_waiting=0, num_running=0, idle_seconds=0.0, routed_by_prefix=0.4), True, 0.4),
        (Demand(num_waiting=0, num_running=0, idle_seconds=0.0), True, 1.0),
        (Demand(num_waiting=0, num_running=0, idle_seconds=0.0, routed_by_prefix=math.nan), False, 0.0),
        (no_demand(), True, 1.0),
        (no_demand(), False, 0.0),
    ],
)
def test_affinity_is_what_gateways_count_or_else_what_the_route_is_for(
    demand: Demand, by_prefix: bool, affinity: float
) -> None:
    assert affinity_of(service(demand=demand, by_prefix=by_prefix)) == affinity
