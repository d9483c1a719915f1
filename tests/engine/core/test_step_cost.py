"""Fitted step costs against synthetic machines, quiet, noisy, disturbed and changing."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood_contract.metrics import STEP_COSTS
from sapwood_engine.core.step_cost import StepCosts, StepWork, chunk_keys

Machine = Callable[[StepWork], float]


def machine(base: float, decode: float, decode_key: float, token: float, token_key: float) -> Machine:
    """A machine whose steps take exactly what the formula says."""
    return lambda work: (
        base
        + decode * work.num_decodes
        + decode_key * work.decode_keys
        + token * work.prefill_tokens
        + token_key * work.prefill_keys
    )


CPU = machine(6e-3, 0.8e-3, 0.8e-6, 0.57e-3, 0.2e-6)
"""SmolLM2-135M on two AVX512-BF16 cores."""

machines = st.builds(
    machine, st.floats(1e-4, 0.1), st.floats(1e-5, 1e-2), st.floats(0, 1e-6), st.floats(1e-6, 1e-2), st.floats(0, 1e-6)
)


def some_work(random: Random) -> StepWork:
    """A decode, a prefill or a mixed step of an engine that serves all kinds of requests."""
    num_decodes = random.randint(0, 16)
    chunk = random.choice((0, 0, random.randint(1, 512))) if num_decodes else random.randint(1, 512)
    keys = chunk_keys(random.randint(0, 6000), chunk)
    return StepWork(num_decodes, num_decodes * random.randint(50, 2000), chunk, keys)


def fitted(
    of: Machine, random: Random, *, num_steps: int = 200, noise: float = 0.0, outliers: float = 0.0
) -> StepCosts:
    """``outliers``: the share of steps that take ten times as long."""
    costs = StepCosts()
    for _ in range(num_steps):
        work = some_work(random)
        disturbed = 10 if random.random() < outliers else 1
        costs.observe(work, of(work) * max(0.3, random.gauss(1, noise)) * disturbed)
    return costs


def errors(costs: StepCosts, of: Machine, random: Random) -> list[float]:
    """Relative errors of what ``costs`` predict for 50 steps, the smallest first."""
    works = [some_work(random) for _ in range(50)]
    return sorted(abs(costs.predict(work) / of(work) - 1) for work in works)


def test_before_the_first_observation_everything_costs_nothing() -> None:
    costs = StepCosts()
    assert costs.predict(StepWork(64, 10_000, 512, 10_000)) == 0
    assert costs.affordable_tokens(1000, 0.0, most=512) == 512


@settings(max_examples=50, deadline=None)
@given(of=machines, seed=st.integers(0, 1 << 32))
def test_the_steps_of_any_machine_are_told_in_advance(of: Machine, seed: int) -> None:
    random = Random(seed)
    assert errors(fitted(of, random), of, random)[-3] < 0.05


@settings(max_examples=50, deadline=None)
@given(of=machines, seed=st.integers(0, 1 << 32))
def test_noise_and_steps_that_a_neighbour_disturbed_do_not_spoil_the_fit(of: Machine, seed: int) -> None:
    random = Random(seed)
    costs = fitted(of, random, noise=0.1, outliers=0.03)
    assert errors(costs, of, random)[25] < 0.2


def test_one_step_that_took_ten_times_as_long_moves_the_next_prediction_by_less_than_two_percent() -> None:
    costs = fitted(CPU, Random(1))
    work = StepWork(8, 8000, 200, chunk_keys(1000, 200))
    costs.observe(work, 10 * CPU(work))
    assert costs.predict(work) == pytest.approx(CPU(work), rel=0.02)


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_a_machine_that_became_faster_or_slower_is_known_again_after_40_steps(factor: float) -> None:
    random = Random(2)
    costs = fitted(CPU, random)
    for _ in range(40):
        work = some_work(random)
        costs.observe(work, factor * CPU(work))
    work = StepWork(8, 8000, 200, chunk_keys(1000, 200))
    assert costs.predict(work) == pytest.approx(factor * CPU(work), rel=0.25)


def test_what_is_known_of_prefills_outlasts_an_hour_of_decodes() -> None:
    random = Random(3)
    costs = fitted(CPU, random)
    for number in range(20_000):
        work = StepWork(8, 8 * (100 + number % 900))
        costs.observe(work, CPU(work) * random.gauss(1, 0.1))
    work = StepWork(8, 8000, 200, chunk_keys(1000, 200))
    assert costs.predict(work) == pytest.approx(CPU(work), rel=0.1)


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.builds(
                StepWork,
                st.integers(0, 64),
                st.integers(0, 1 << 20),
                st.integers(0, 4096),
                st.integers(0, 1 << 27),
            ),
            st.floats(allow_nan=True, allow_infinity=True) | st.floats(1e-6, 1e4),
        ),
        max_size=60,
    ),
    asked=st.builds(
        StepWork, st.integers(0, 64), st.integers(0, 1 << 20), st.integers(0, 4096), st.integers(0, 1 << 27)
    ),
)
def test_whatever_was_measured_a_prediction_is_finite_and_not_negative(
    steps: list[tuple[StepWork, float]], asked: StepWork
) -> None:
    costs = StepCosts()
    for work, seconds in steps:
        costs.observe(work, seconds)
    assert 0 <= costs.predict(asked) < math.inf


@settings(deadline=None)
@given(
    of=machines,
    seed=st.integers(0, 1 << 32),
    start=st.integers(0, 1 << 17),
    seconds=st.floats(0, 10),
    most=st.integers(1, 4096),
)
def test_affordable_is_the_longest_chunk_within_the_time(
    of: Machine, seed: int, start: int, seconds: float, most: int
) -> None:
    costs = fitted(of, Random(seed), num_steps=30)
    num_tokens = costs.affordable_tokens(start, seconds, most=most)
    assert 0 <= num_tokens <= most
    assert costs.prefill_seconds(start, num_tokens) <= seconds * (1 + 1e-9)
    if num_tokens < most:
        assert costs.prefill_seconds(start, num_tokens + 1) > seconds * (1 - 1e-9)


def test_every_token_of_a_chunk_reads_all_before_it_and_itself() -> None:
    assert chunk_keys(10, 3) == 11 + 12 + 13


def test_a_part_is_told_once_ten_steps_had_something_of_it_and_none_before_any_step() -> None:
    costs = StepCosts()
    assert costs.known() == {}
    for length in range(10):
        assert costs.known() == {}
        costs.observe(StepWork(1, 100 + 50 * length), CPU(StepWork(1, 100 + 50 * length)))
    assert set(costs.known()) == {"base", "decode", "decode_key"}
    for length in range(1, 11):
        assert "prefill_token" not in costs.known()
        work = StepWork(0, 0, 20 * length, chunk_keys(0, 20 * length))
        costs.observe(work, CPU(work))
    assert set(costs.known()) == set(STEP_COSTS)


def test_what_is_told_of_a_part_is_what_a_quiet_machine_takes_for_it() -> None:
    known = fitted(CPU, Random(5), num_steps=400).known()
    assert known["prefill_token"] == pytest.approx(0.57e-3, rel=0.1)
    assert known["decode"] == pytest.approx(0.8e-3, rel=0.25)
