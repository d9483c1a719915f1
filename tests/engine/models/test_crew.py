"""How many threads compute: all while they are undisturbed, fewer while somebody takes their cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapwood_engine.models.crew import CrewSize, one_of_each_core

STEP = 0.01


def steps(size: CrewSize, seconds: float, *, lost: float) -> list[int]:
    """Observe steps for ``seconds`` in which every thread sleeps the share ``lost``; the sizes they were done with."""
    sizes = []
    for _ in range(round(seconds / STEP)):
        sizes.append(size.current)
        size.observe(STEP, lost * STEP * size.current)
    return sizes


def test_an_undisturbed_crew_stays_whole() -> None:
    size = CrewSize(4, 4)
    assert set(steps(size, 60, lost=0.05)) == {4}


def test_one_slow_step_changes_nothing() -> None:
    size = CrewSize(2, 2)
    steps(size, 0.28, lost=0.0)
    size.observe(0.02, 0.015)
    assert size.current == 2


def test_prefills_whose_threads_are_not_done_at_once_now_and_then_change_nothing() -> None:
    size = CrewSize(2, 2)
    for _ in range(100):
        for lost in (0.01, 0.25, 0.0, 0.04):
            size.observe(0.1, lost * 0.1 * size.current)
            assert size.current == 2


def test_a_disturbed_crew_becomes_smaller_within_half_a_second_but_never_empty() -> None:
    size = CrewSize(3, 3)
    assert 2 in steps(size, 0.5, lost=0.6)
    steps(size, 10, lost=0.6)
    assert size.current == 1


def test_a_crew_is_whole_again_soon_after_the_disturbance() -> None:
    size = CrewSize(2, 2)
    steps(size, 0.3, lost=0.6)
    assert size.current == 1
    steps(size, 3, lost=0.0)
    assert size.current == 2


def test_lasting_disturbance_is_tried_against_more_and_more_rarely() -> None:
    """Every trial with two threads costs time that one thread alone would not have lost."""
    size = CrewSize(2, 2)

    def disturbed_share(seconds: float) -> float:
        done = []
        for _ in range(round(seconds / STEP)):
            done.append(size.current)
            size.observe(STEP, 0.6 * STEP * 2 if size.current == 2 else 0.0)
        return done.count(2) / len(done)

    disturbed_share(30)
    assert disturbed_share(60) < 0.02


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    for processor, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    return tmp_path


def test_of_two_hardware_threads_of_a_core_one_is_taken(topology: Path) -> None:
    assert one_of_each_core(frozenset({0, 1, 2, 3}), topology) == [0, 1]
    assert one_of_each_core(frozenset({2, 3}), topology) == [2, 3]


def test_where_the_system_tells_nothing_every_processor_counts(tmp_path: Path) -> None:
    assert one_of_each_core(frozenset({0, 5}), tmp_path) == [0, 5]
