"""`sapwood replay --mrc`: the curve that an engine measures is what caches of other sizes hit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support_reuse_logs import mean_and_most
from support_traces import conversations

from sapwood_contract.curve import hit_ratio_at
from sapwood_tools.replay import cli
from sapwood_tools.replay.curve import MULTIPLES, compare, measured_curve
from sapwood_tools.replay.engine import CacheTooSmall

TRACE = conversations(num_conversations=500, seconds_between=1.0)
NUM_TOKENS = sum(each.prompt.num_tokens for each in TRACE)


def errors(*, sample_rate: float) -> list[float]:
    """In points."""
    curve = measured_curve(TRACE, 1_000, sample_rate=sample_rate)
    return [100 * (each.curve - each.simulated) for each in compare(TRACE, curve)]


def test_five_percent_sampling_is_off_by_no_more_than_is_promised() -> None:
    mean, most = mean_and_most(errors(sample_rate=0.05))
    assert mean <= 0.6
    assert most <= 2.0


def test_with_everything_sampled_nothing_is_left_but_the_scale_of_the_last_block() -> None:
    _, most = mean_and_most(errors(sample_rate=1.0))
    assert most < 0.1


def test_a_capacity_that_no_point_has_is_read_between_two() -> None:
    curve = measured_curve(TRACE, 1_000, sample_rate=1.0)
    smaller, larger = (hit_ratio_at(curve, multiple * curve.capacity_tokens) for multiple in (0.5, 1.0))
    assert smaller < hit_ratio_at(curve, 0.75 * curve.capacity_tokens) < larger


def test_a_prompt_that_does_not_fit_has_no_curve() -> None:
    with pytest.raises(CacheTooSmall):
        measured_curve(TRACE, 5, sample_rate=1.0)


def test_the_command_prints_both_ratios_of_every_capacity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        "\n".join(
            json.dumps(
                {"timestamp": at, "input_length": 1_100, "output_length": 5, "hash_ids": [at % 7, 100 + at, 200]}
            )
            for at in range(100)
        )
    )
    assert cli.main([str(trace), "--mrc", "--capacity-blocks=50", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == len(MULTIPLES)
    assert all(set(line) == {"capacity_blocks", "simulated", "curve"} for line in lines)
    assert cli.main([str(trace), "--mrc", "--capacity-blocks=50"]) == 0
    assert "Error in points" in capsys.readouterr().out


def test_a_sample_rate_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["trace", "--mrc", "--mrc-sample-rate=2"])
    assert "'2' is not from 0.001 to 1" in capsys.readouterr().err
