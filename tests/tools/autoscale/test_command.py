"""`sapwood replay --autoscale`: options, what is printed and what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sapwood_tools.replay import cli
from sapwood_tools.replay.autoscale.day import Day, make_day
from sapwood_tools.replay.autoscale.policy_file import UnusablePolicy, read_policy

POLICY = """
kind: AutoscalingPolicy
spec:
  maxReplicas: 4
  slo: {ttftP90: 20s}
"""
SMALL = Day(seed=3, hours=0.25, requests_per_second=0.5, num_bursts=1)


def policy(folder: Path, text: str = POLICY) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def trace(folder: Path) -> Path:
    path = folder / "short.jsonl"
    lines = [
        json.dumps(
            {"timestamp": 2_000 * at, "input_length": 2_048, "output_length": 9, "hash_ids": [0, at % 5, at, at + 999]}
        )
        for at in range(10, 400)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_it_prints_a_line_for_each_controller_and_writes_a_page_that_needs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, pictures = tmp_path / "page.html", tmp_path / "plot"
    given = [str(trace(tmp_path)), f"--autoscale={policy(tmp_path)}", "--controllers=sapwood,hpa-queue"]
    assert cli.main([*given, "--json", f"--report={page}", f"--plots={pictures}"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["controller"] for row in rows] == ["sapwood", "hpa-queue", "clairvoyant"]
    assert rows[-1]["over_clairvoyant"] == rows[-1]["near_clairvoyant"] == 1.0
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 3
    outside = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not any(word in outside for word in ("http", "src=", "href=", "@import", "url("))
    assert sorted(each.name for each in tmp_path.glob("plot-*.svg")) == [
        "plot-hits.svg",
        "plot-replicas.svg",
        "plot-ttft.svg",
    ]


def test_as_text_it_says_how_far_the_targets_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([str(trace(tmp_path)), f"--autoscale={policy(tmp_path)}", "--controllers=sapwood,slo-ratio"]) == 0
    told = capsys.readouterr().out
    assert "| controller " in told
    assert "95 % are wanted" in told


def test_the_builtin_day_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    day, again, other = make_day(SMALL), make_day(SMALL), make_day(Day(seed=4, hours=0.25, requests_per_second=0.5))
    assert day == again
    assert day != other
    assert [each.arrival_seconds for each in day] == sorted(each.arrival_seconds for each in day)
    assert 200 < len(day) < 700
    assert all(each.blocks[0] == 0 and each.arrival_seconds < 900.0 for each in day)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("spec: [", "not YAML"),
        ("", "it has 0 documents"),
        ("maxReplicas: 4", "slo.ttftP90: it is required here"),
        ("kind: AutoscalingPolicy\nspec: {slo: {ttftP90: 2s}}", "spec.maxReplicas"),
        ("kind: InferenceService\nspec: {autoscaling: {maxReplicas: 0}}", "spec.autoscaling.maxReplicas: 0"),
    ],
)
def test_a_policy_that_cannot_be_used_is_told_with_its_field(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([str(trace(tmp_path)), f"--autoscale={policy(tmp_path, text)}"]) == 1
    assert told in capsys.readouterr().err


def test_a_policy_is_read_from_a_service_or_by_itself(tmp_path: Path) -> None:
    bare = read_policy(policy(tmp_path, "{maxReplicas: 4, slo: {ttftP90: 2s}}"))
    inline = read_policy(
        policy(tmp_path, "kind: InferenceService\nspec: {autoscaling: {maxReplicas: 4, slo: {ttftP90: 2s}}}")
    )
    assert bare == inline
    with pytest.raises(UnusablePolicy, match="maxReplicas"):
        read_policy(policy(tmp_path, "[]"))


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--controllers=best", "'best' is not one of sapwood"),
        ("--speed=0", "'0' is not more than 0"),
        ("--start-seconds=soon", "'soon' is not a number"),
        ("--seed=x", "'x' is not a whole number"),
    ],
)
def test_a_wrong_option_is_refused_by_name(option: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["trace.jsonl", option])
    assert told in capsys.readouterr().err


def test_a_latency_model_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.json"
    model.write_text("{}", encoding="utf-8")
    assert cli.main([str(trace(tmp_path)), f"--autoscale={policy(tmp_path)}", f"--model={model}"]) == 1
    assert "model.json" in capsys.readouterr().err
