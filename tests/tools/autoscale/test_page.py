"""The page's tables are what replays printed: what follows from them is reckoned, not written."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapwood_tools.replay.autoscale.page import missed, told_of, written

PAGE = Path(__file__).resolve().parents[3] / "docs" / "autoscaling.md"
TABLE = """\
| controller  | minutes kept | of clairvoyant's | within one |
|-------------|--------------|------------------|------------|
| sapwood     | 99.0%        | 1.100            | 96.0%      |
| other       | 99.5%        | 2.000            | 10.0%      |
| clairvoyant | 100.0%       | 1.000            | 100.0%     |
"""


def test_each_bound_is_said_to_be_kept_or_missed_by_how_much() -> None:
    row = missed({"trace": TABLE}).splitlines()[2]
    assert (
        row == "| **trace** | 96.0 %, kept | 1.100, **missed** by 0.020 | 99.0 %, **missed** by 0.5 points | 99.5 % |"
    )


def test_a_replay_is_written_into_its_part_and_what_follows_from_it_too() -> None:
    page = "a\n<!-- trace: begin -->\nold\n<!-- trace: end -->\nb\n<!-- missed: begin -->\n<!-- missed: end -->\nc\n"
    found = written(page, {"trace": TABLE})
    assert told_of(found)["trace"] == TABLE
    assert "1.100" in told_of(found)["missed"]
    assert found.startswith("a\n")
    assert found.endswith("\nc\n")
    with pytest.raises(KeyError, match="other"):
        written(page, {"other": TABLE})


def test_what_the_page_misses_is_what_its_tables_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert set(told_of(page)) == {"conversation", "synthetic", "day", "missed"}
    assert written(page, {}) == page
