"""``sapwood bench --fit``: equations from answers, costs from equations, and the program against a scripted engine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
from support_api import served
from support_fake_client import FakeClient, Say

from sapwood_contract.http import LoadSnapshot
from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.api.app import build_app
from sapwood_engine.core.step_cost import chunk_keys
from sapwood_engine.service.generation import Generation
from sapwood_tools.bench import cli
from sapwood_tools.bench.client import Answer, Failure
from sapwood_tools.bench.fit import FitError, limits_of
from sapwood_tools.bench.fit_probes import Alone, Beside, ProbeError, Streams, ask, probes, times
from sapwood_tools.bench.fit_rows import Equation, fit
from sapwood_tools.replay.latency import RequestSeconds, StepSeconds, read_model

STEPS = StepSeconds(prefill_token=1e-3, prefill_key=5e-7, decode=8e-4, decode_key=3e-6, base=1e-2)
REQUESTS = RequestSeconds(request=4e-3, request_token=2e-6)


def told(equation: Equation) -> float:
    """Return the seconds that `STEPS` and `REQUESTS` make of the amounts."""
    *amounts, requests, tokens = equation.amounts
    costs = (STEPS.prefill_token, STEPS.prefill_key, STEPS.decode, STEPS.decode_key, STEPS.base)
    parts = sum(amount * cost for amount, cost in zip(amounts, costs, strict=True))
    return parts + requests * REQUESTS.request + tokens * REQUESTS.request_token


def equations() -> list[Equation]:
    """What a round of probes would bring on an engine that costs just that."""
    alone = [(16, 0), (64, 0), (256, 0), (512, 0), (1024, 0), (1536, 0), (256, 192), (1024, 960), (1536, 1440)]
    asked = [
        Equation(
            f"prompt of {n}, {start} cached",
            1.0,
            prefill_tokens=n - start,
            prefill_keys=chunk_keys(start, n - start),
            steps=-(-(n - start) // 512),
            requests=1,
            request_tokens=n,
        )
        for n, start in alone
    ]
    asked += [
        Equation(f"{n} streams behind {keys}", 1.0, decodes=20 * n, decode_keys=20 * n * keys, steps=20)
        for n, keys in ((1, 32), (1, 1024), (4, 256), (4, 768), (8, 256), (16, 128))
    ]
    return [replace(each, seconds=told(each)) for each in asked]


def near(one: StepSeconds | RequestSeconds, other: StepSeconds | RequestSeconds, *, rel: float) -> bool:
    return all(getattr(one, name) == pytest.approx(getattr(other, name), rel=rel) for name in one.__slots__)


# --- costs from equations


def test_costs_that_tell_everything_are_found() -> None:
    found = fit(equations())
    assert near(found.steps, STEPS, rel=0.01)
    assert near(found.requests, REQUESTS, rel=0.05)
    assert found.median_error < 0.001


def test_answers_that_took_far_longer_than_the_others_say_count_nothing() -> None:
    random = Random(5)
    rounds = [each for _ in range(4) for each in equations()]
    noisy = [replace(each, seconds=each.seconds * random.uniform(0.98, 1.02)) for each in rounds]
    disturbed = [
        replace(each, seconds=each.seconds * 2.5) if number % 9 == 0 else each for number, each in enumerate(noisy)
    ]
    found = fit(disturbed)
    for each in equations():
        mine = next(residual for residual in found.residuals if residual.probe == each.probe)
        assert mine.told_seconds == pytest.approx(each.seconds, rel=0.04)


def test_no_cost_is_negative() -> None:
    falling = [
        Equation("a", 0.2, prefill_tokens=100, steps=1),
        Equation("b", 0.1, prefill_tokens=200, steps=1),
    ]
    found = fit(falling)
    assert found.steps.prefill_token == 0.0
    assert 0.1 <= found.steps.base <= 0.2


# --- equations from answers


@dataclass(frozen=True, slots=True)
class Metronome:
    """An engine whose every token takes a tenth of a second, and the first one three."""

    reason: str | None = None

    async def complete(self, prompt: str | Sequence[int], max_tokens: int) -> Answer | Failure:
        if self.reason is not None:
            return Failure(self.reason)
        gaps = (0.1,) * (max_tokens - 1)
        return Answer("", 5.0, 5.3, 5.3 + sum(gaps), len(prompt), max_tokens, None, gaps)


def asked(probe: Alone | Streams | Beside, engine: Metronome) -> Equation | None:
    return asyncio.run(ask(probe, engine, chunk_tokens=512, random=Random(0)))


def test_a_prompt_alone_is_what_is_not_cached_in_as_many_steps_as_it_has_chunks() -> None:
    assert asked(Alone(1024, 200), Metronome()) == Equation(
        "prompt of 1024, 200 cached",
        pytest.approx(0.3),  # type: ignore[arg-type]  # compares like the number that it stands for
        prefill_tokens=824,
        prefill_keys=chunk_keys(200, 824),
        steps=2,
        requests=1,
        request_tokens=1024,
    )


def test_streams_are_counted_while_all_decode() -> None:
    equation = asked(Streams(3, 50, 11), Metronome())
    assert equation is not None
    assert equation.seconds == pytest.approx(1.0)
    assert equation.steps == pytest.approx(10)
    assert equation.decodes == pytest.approx(30)
    assert equation.decode_keys == pytest.approx(3 * sum(range(51, 61)))


def test_beside_streams_a_step_that_had_begun_counts_in_part() -> None:
    equation = asked(Beside(2, 120), Metronome())
    assert equation is not None
    # The streams' first token comes when the prompt's does: nobody decoded meanwhile.
    assert equation.seconds == pytest.approx(0.3)
    assert (equation.steps, equation.prefill_tokens) == (0, 120)


def test_an_answer_that_fails_ends_the_fit_with_its_reason() -> None:
    with pytest.raises(ProbeError, match="status 503"):
        asked(Alone(10), Metronome("status 503"))


def test_times_of_tokens_are_told_back_from_the_last() -> None:
    answer = Answer("", 0.0, 1.5, 2.0, 3, 4, None, (0.5, 0.25, 0.25))
    assert times(answer) == pytest.approx([1.0, 1.5, 1.75, 2.0])


def test_no_probe_is_more_than_the_engine_holds_or_runs() -> None:
    some = probes(longest_tokens=400, max_running=4, kv_tokens=500)
    assert {"Alone", "Streams", "Beside"} == {type(each).__name__ for each in some}
    assert max(each.kv_tokens for each in some) <= 500
    assert max(each.num_streams for each in some) <= 4


def test_limits_are_what_the_engine_was_started_with_and_what_it_tells() -> None:
    limits = limits_of(["--chunk-tokens=128", "--max-running=9"], {"kv_capacity_tokens": 4096, "max_running": 8})
    assert (limits.kv_tokens, limits.max_running, limits.chunk_tokens, limits.max_step_tokens) == (4096, 8, 128, 2048)
    with pytest.raises(FitError, match=r"--engine-options: .*--chnk-tokens"):
        limits_of(["--chnk-tokens=1"], {})


# --- the program


def exactly_as_many_tokens_as_asked(generation: Generation) -> Sequence[Say]:
    said = [Say("a", token_ids=(97,)) for _ in range(generation.stop.max_tokens)]
    return [*said, Say(finish="length")]


async def test_the_program_writes_a_model_that_a_replay_reads_and_shows_how_well_it_fits(tmp_path: Path) -> None:
    engine = FakeClient(script=exactly_as_many_tokens_as_asked, num_cached_tokens=0).with_capacity(
        max_context_tokens=4096
    )
    engine.load = LoadSnapshot(kv_capacity_tokens=8192, max_running=4)
    async with served(build_app(engine)) as url, served(build_admin_app(engine)) as admin_url:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sapwood", "bench", "--fit", "--url", url, "--admin-url", admin_url),
            *("--fit-longest", "96", "--fit-seconds", "0", "--fit-file", str(tmp_path / "model.json")),
            "--engine-options=--chunk-tokens=256",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    model = read_model(tmp_path / "model.json")
    assert (model.limits.kv_tokens, model.limits.max_running, model.limits.chunk_tokens) == (8192, 4, 256)
    assert {"model", "machine", "date", "engine_options", "rounds", "residuals"} <= set(model.noted)
    assert "prefill_token" in err.decode()
    assert "prompt of 96" in err.decode()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--fit"], "--fit: --admin-url is needed"),
        (["--fit", "--launch", "--peer", "openvino"], "--fit: peers have no latency model"),
        (["--fit", "--launch", "--fit-longest", "10"], "--fit-longest: 10 is less than 96"),
    ],
)
def test_wrong_options_of_a_fit_are_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.read_options(arguments)
    assert complaint in capsys.readouterr().err
