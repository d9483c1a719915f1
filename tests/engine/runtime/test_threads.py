from __future__ import annotations

from pathlib import Path

import pytest

from sapwood_engine.runtime.threads import default_num_threads


@pytest.mark.parametrize(("cpu_max", "wanted"), [("100000 100000", 1), ("20000 100000", 1), ("150000 100000", 2)])
def test_a_quota_caps_the_threads(tmp_path: Path, cpu_max: str, wanted: int) -> None:
    (tmp_path / "cpu.max").write_text(cpu_max)
    assert default_num_threads(tmp_path) <= wanted


@pytest.mark.parametrize("content", [None, "max 100000", "nonsense"])
def test_without_a_quota_every_core_counts(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "cpu.max").write_text(content)
    (tmp_path / "quota").mkdir()
    assert default_num_threads(tmp_path) == default_num_threads(tmp_path / "quota") >= 1


def test_the_older_control_groups_quota_counts_too(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("50000")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    assert default_num_threads(tmp_path) == 1
