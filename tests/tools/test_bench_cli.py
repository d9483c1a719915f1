"""``sapwood bench`` as a person runs it, against our own API over a scripted engine."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from support_api import served
from support_fake_client import FakeClient, Say

from sapwood_engine.api.app import build_app
from sapwood_engine.errors import Draining
from sapwood_engine.service.generation import Generation
from sapwood_tools.bench import cli
from sapwood_tools.bench.peers import PEERS


async def bench(*arguments: str) -> tuple[int | None, list[dict[str, Any]], str]:
    """Run the program; exit code, the objects it printed, what it told a person."""
    argv = [sys.executable, "-m", "sapwood", "bench", *arguments]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    return process.returncode, [json.loads(line) for line in out.splitlines()], err.decode()


def exactly_as_many_tokens_as_asked(generation: Generation) -> Sequence[Say]:
    said = [Say("a", token_ids=(97,)) for _ in range(generation.stop.max_tokens)]
    return [*said, Say(finish="length")]


def engine() -> FakeClient:
    client = FakeClient(script=exactly_as_many_tokens_as_asked, num_cached_tokens=5)
    return client.with_capacity(max_context_tokens=20_000)  # bytes are tokens there: prompts are five times longer


async def test_each_workload_is_a_line_of_json_and_a_line_of_a_table() -> None:
    async with served(build_app(engine())) as url:
        code, printed, told = await bench("--url", url, "--workloads", "e_decode1,f_decode16")
    assert code == 0, told
    machine, first, second = printed
    assert machine["machine"]["cores"] >= 1
    assert (first["workload"], first["num_output_tokens"], first["num_cached_tokens"]) == (
        "e_decode1",
        128,
        5,
    )
    assert (second["workload"], second["num_output_tokens"], second["num_failures"]) == (
        "f_decode16",
        2048,
        0,
    )
    assert second["cpu"] is None
    assert "e_decode1 r0" in told
    assert "f_decode16 r0" in told


async def test_every_repetition_takes_another_variant() -> None:
    async with served(build_app(engine())) as url:
        _, printed, _ = await bench("--url", url, "--workloads", "e_decode1", "--repetitions", "4")
    assert [run["variant"] for run in printed[1:]] == [0, 1, 2, 3]


async def test_conversations_send_four_turns_each() -> None:
    client = engine()
    async with served(build_app(client)) as url:
        code, printed, told = await bench("--url", url, "--workloads", "b_multiturn")
    assert code == 0, told
    assert printed[1]["num_output_tokens"] == 8 * 4 * 32


async def test_failures_are_counted_by_reason_and_are_the_exit_code() -> None:
    draining = FakeClient(script=lambda _: [Draining(retry_after_seconds=1)])
    async with served(build_app(draining.with_capacity(max_context_tokens=20_000))) as url:
        code, printed, told = await bench("--url", url, "--workloads", "e_decode1")
    assert code == 1
    assert printed[1]["num_failures"] == 1, told
    assert next(iter(printed[1]["failures"])).startswith("status 503")


async def test_an_address_where_nobody_answers_is_told_in_one_line() -> None:
    code, _, told = await bench("--url", "http://127.0.0.1:9")
    assert code == 1
    assert told.startswith("sapwood bench: ")
    assert told.count("\n") == 1


@pytest.mark.engine
async def test_our_own_engine_is_started_measured_and_ended(tmp_path: Path) -> None:
    small = {"kind": "completion", "prompt": "Once upon a time", "prompt_tokens": 4, "max_tokens": 8}
    (tmp_path / "workloads").mkdir()
    for name in ("warm", "e_decode1_r0"):
        (tmp_path / "workloads" / f"{name}.jsonl").write_text(json.dumps(small))
    where = ("--data", str(tmp_path), "--folder", str(tmp_path / "made"))
    code, printed, told = await bench("--launch", "--workloads", "e_decode1", *where)
    assert code == 0, told
    run = printed[1]
    assert (run["server"], run["num_output_tokens"], run["num_other_lengths"]) == ("sapwood", 8, 0)
    assert run["cpu"]["server_cores"] > 0
    mine = psutil.Process().children(recursive=True)
    assert not [process for process in mine if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--workloads", "a_shared,x"], "'x' is not one of"),
        (["--repetitions", "5"], "between 1 and 4"),
        (["--peer", "nobody"], "nobody"),
        (["--wrkloads", "a_shared"], "--wrkloads"),
    ],
)
def test_wrong_options_are_refused_by_name(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.read_options(arguments)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_peer_implies_that_our_own_engine_is_started() -> None:
    options = cli.read_options(["--peer", "openvino", "--peer", "openvino", "--engine-options=--overlap=off"])
    assert options.launch
    assert options.num_repetitions > 1
    assert options.peers == ("openvino",)
    assert options.engine_options == ("--overlap=off",)


def test_every_peer_has_its_versions_and_its_server_in_the_repository() -> None:
    scripts = cli.read_options([]).data / "peers"
    for name in PEERS:
        lines = (scripts / f"{name}.txt").read_text().split()
        assert all("==" in line for line in lines), name
        assert (scripts / f"{name}_server.py").exists()
