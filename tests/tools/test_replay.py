"""`sapwood replay`: what it counts, and that the gateway's policy makes many caches one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from support_traces import conversations

from sapwood_tools.replay import cli
from sapwood_tools.replay.engine import CacheTooSmall, Speed, VirtualEngine
from sapwood_tools.replay.one_cache import OneCache, cached_tokens
from sapwood_tools.replay.policies import POLICIES
from sapwood_tools.replay.simulate import Tally, simulate, speed_for
from sapwood_tools.replay.trace import TraceError, read_trace, request

SLOW = Speed(prefill_tokens_per_second=1_000.0, token_seconds=0.1)


TRACE = conversations(num_conversations=600, seconds_between=1.0)
NUM_TOKENS = sum(each.prompt.num_tokens for each in TRACE)


def run(policy: str, num_replicas: int, *, capacity_blocks: int = 1_000, num_gateways: int = 1) -> Tally:
    speed = speed_for(TRACE, num_replicas, busy=0.6, token_seconds=0.03)
    return simulate(
        TRACE,
        policy,
        num_replicas=num_replicas,
        capacity_blocks=capacity_blocks,
        speed=speed,
        num_gateways=num_gateways,
    )


def unevenness(values: Sequence[int]) -> float:
    return max(values) * len(values) / sum(values)


def written(folder: Path, *lines: str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def line(at: int = 0, tokens: object = 600, output: int = 10, ids: object = (1, 2)) -> str:
    return json.dumps({"timestamp": at, "input_length": tokens, "output_length": output, "hash_ids": ids})


# --- traces


def test_a_trace_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    late, early = read_trace(written(tmp_path, line(2_500), line(1_000, 512, 7, [3])))[::-1]
    assert (early.arrival_seconds, early.output_tokens, early.blocks) == (1.0, 7, (3,))
    assert (late.arrival_seconds, late.prompt.num_tokens, late.blocks) == (2.5, 600, (1, 2))


def test_blocks_filled_in_part_are_none_that_a_gateway_hashes() -> None:
    assert [len(request(0.0, tokens, 0, blocks).prompt.chain) for tokens, blocks in ((511, (1,)), (512, (1,)))] == [
        0,
        1,
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        "no JSON",
        "[]",
        "3",
        '{"timestamp": 0}',
        line(tokens="600"),
        line(ids=7),
        line(ids=[1, "2"]),
        line(ids=[1]),
        line(tokens=0, ids=[]),
        line(ids=[1, 2**40]),
    ],
)
def test_what_is_no_trace_is_refused_with_the_line(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(TraceError, match="line 2"):
        read_trace(written(tmp_path, line(), wrong))


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request"):
        read_trace(written(tmp_path))


# --- one cache


def test_one_cache_forgets_what_was_used_the_longest_time_ago_and_ends_before_beginnings() -> None:
    cache = OneCache(4)
    assert [cache.serve(blocks) for blocks in ([1, 2, 3], [1, 2, 3], [4, 5], [1, 2, 3], [6], [4, 5])] == [
        0,
        3,
        0,
        2,
        0,
        0,
    ]
    endless = OneCache(None)
    assert [endless.serve(blocks) for blocks in ([1, 2, 3], [4, 5], [1, 2, 3, 6], [4, 7])] == [0, 0, 3, 1]


def test_the_last_token_of_a_prompt_is_computed_in_any_case() -> None:
    again = [request(0.0, 1_024, 1, (1, 2)), request(1.0, 1_024, 1, (1, 2))]
    assert cached_tokens(again, None) == 1_023


# --- engines


def test_a_prompt_waits_for_those_before_it_and_finds_what_they_leave() -> None:
    engine = VirtualEngine(100, SLOW)
    first = engine.serve(request(0.0, 1_000, 5, (1, 2)), 0.0)
    second = engine.serve(request(0.0, 1_536, 5, (1, 3, 4)), 0.5)
    assert (first.cached_tokens, first.first_token_at, first.done_at) == (0, 1.0, 1.5)
    assert (second.cached_tokens, second.first_token_at) == (512, 1.0 + 1.024)
    assert engine.waiting_tokens(1.024) == 1_000
    assert engine.waiting_tokens(9.0) == 0
    assert engine.num_requests == 2


def test_a_prompt_longer_than_the_cache_is_refused() -> None:
    with pytest.raises(CacheTooSmall, match="1536 tokens does not fit into 2 blocks"):
        VirtualEngine(2, SLOW).serve(request(0.0, 1_536, 1, (1, 2, 3)), 0.0)


# --- policies


@pytest.mark.parametrize("policy", POLICIES)
def test_one_replica_finds_what_one_cache_finds(policy: str) -> None:
    tally = run(policy, 1)
    assert tally.cached_tokens == pytest.approx(cached_tokens(TRACE, 1_000), rel=0.01)
    assert sum(tally.num_requests) == len(TRACE)
    assert sum(tally.computed_tokens) == NUM_TOKENS - tally.cached_tokens + 100 * len(TRACE)


@pytest.mark.parametrize("policy", ["prefix-affinity", "prefix-affinity-guessed"])
@pytest.mark.parametrize("num_replicas", [2, 4])
def test_under_prefix_affinity_many_caches_are_one_and_equally_busy(policy: str, num_replicas: int) -> None:
    tally = run(policy, num_replicas)
    assert tally.cached_tokens >= 0.98 * cached_tokens(TRACE, 1_000 * num_replicas)
    assert unevenness(tally.computed_tokens) <= 1.05
    assert tally.num_foreseen >= 0.97 * len(TRACE)


def test_gateways_that_do_not_know_of_each_other_make_many_caches_one_too() -> None:
    tally = run("prefix-affinity", 4, num_gateways=3)
    assert tally.cached_tokens >= 0.98 * cached_tokens(TRACE, 4_000)
    assert unevenness(tally.computed_tokens) <= 1.05
    # What one of them does not see of the others' requests is little, and it knows of all blocks.
    assert tally.num_foreseen >= 0.97 * len(TRACE)


def test_gateways_without_events_know_of_their_own_requests_alone() -> None:
    one, three = (run("prefix-affinity-guessed", 4, num_gateways=number) for number in (1, 3))
    assert three.num_foreseen < one.num_foreseen
    assert sum(three.num_requests) == len(TRACE)


def test_under_the_policies_that_look_at_load_alone_they_are_not() -> None:
    one_cache = cached_tokens(TRACE, 8_000)
    assert run("round-robin", 8).cached_tokens < 0.6 * one_cache
    assert run("least-load", 8).cached_tokens < 0.6 * one_cache


def test_hashing_keeps_prefixes_together_whatever_the_load() -> None:
    tally = run("hash", 8)
    assert tally.cached_tokens >= 0.98 * cached_tokens(TRACE, 8_000)
    assert unevenness(tally.computed_tokens) > 1.05


def test_events_tell_exactly_what_is_found_where_no_request_meets_another() -> None:
    apart = conversations(num_conversations=150, seconds_between=1_000.0)
    tally = simulate(apart, "prefix-affinity", num_replicas=3, capacity_blocks=120, speed=SLOW)
    assert tally.num_foreseen == len(apart)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_replay_comes_out_the_same_again(policy: str) -> None:
    assert run(policy, 4) == run(policy, 4)


# --- the command


def test_it_prints_a_row_for_each_policy_and_number_of_replicas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(written(tmp_path, *(line(at) for at in range(0, 9_000, 1_000))))
    given = [path, "--replicas=1,2", "--policy=round-robin,prefix-affinity", "--capacity-blocks=10"]
    assert cli.main([*given, "--json"]) == 0
    rows = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [(row["policy"], row["replicas"]) for row in rows] == [
        *(("round-robin", 1), ("round-robin", 2)),
        *(("prefix-affinity", 1), ("prefix-affinity", 2)),
    ]
    assert rows[0]["hit_ratio"] == round(8 * 599 / (9 * 600), 4)
    assert rows[1]["recomputed_tokens"] == 599
    assert cli.main(given) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows)


def test_weights_can_be_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path, *(line(at) for at in range(0, 9_000, 1_000))))
    given = [path, "--replicas=2", "--policy=prefix-affinity", "--json"]
    foreseen = []
    for weight in ("recent_weight=0", "recent_weight=9"):
        assert cli.main([*given, f"--weight={weight}"]) == 0
        foreseen.append(json.loads(capsys.readouterr().out)["requests_max_to_mean"])
    assert foreseen[0] > foreseen[1]


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--policy=fastest", "'fastest' is not one of prefix-affinity"),
        ("--replicas=1,0", "'0' is not a whole number from 1 on"),
        ("--capacity-blocks=x", "'x' is not a whole number from 1 on"),
        ("--gateways=0", "'0' is not a whole number from 1 on"),
        ("--busy=0", "'0' is not more than 0"),
        ("--token-seconds=nan", "'nan' is not a number from 0 on"),
        ("--weight=speed=1", "'speed' is not one of request_tokens"),
        ("--weight=recent_weight=much", "'much' is not a number from 0 on"),
    ],
)
def test_a_wrong_option_is_refused_by_name(option: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["trace.jsonl", option])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "options", "told"),
    [
        (["{}"], [], "line 1"),
        ([line()], ["--capacity-blocks=1"], "does not fit into 1 blocks"),
    ],
)
def test_what_cannot_be_replayed_is_told(
    lines: list[str], options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([str(written(tmp_path, *lines)), *options]) == 1
    assert told in capsys.readouterr().err
    assert cli.main([str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err
