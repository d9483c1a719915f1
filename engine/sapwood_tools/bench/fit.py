"""``sapwood bench --fit``: asks an engine what tells its costs apart, fits a latency model, and writes it.

The costs are those that a client sees, with whatever lies between two steps of an engine. What the engine fits itself
(``sapwood_step_cost_seconds``) is shown beside, where it tells it.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from sapwood_contract import launch
from sapwood_contract.http import ADMIN_LOAD, METRICS
from sapwood_contract.metrics import STEP_COSTS
from sapwood_tools.bench.cpu_use import machine_facts
from sapwood_tools.bench.fit_probes import Alone, Asks, ask, probes
from sapwood_tools.bench.fit_rows import Equation, Fitted, fit
from sapwood_tools.replay.latency import EngineLimits, LatencyModel

_COST = re.compile(r'^sapwood_step_cost_seconds\{[^}]*part="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)
_ROOM_TOKENS = 64
"""Beside the longest prompt, for its answer."""
LEAST_LONGEST_TOKENS = 96
"""Of the longest prompt: shorter ones leave nothing to tell costs apart by."""


class FitError(Exception):
    """An engine that cannot be fitted; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """What is asked, and where the model goes."""

    file: Path
    seconds: float
    """After which no further round begins; there is one at least."""
    longest_tokens: int
    """Prompt."""
    admin_url: str | None
    """None: `cli` knows it, having started the engine itself."""


def limits_of(engine_options: Sequence[str], load: Mapping[str, Any]) -> EngineLimits:
    """Return the limits of an engine that was started with ``engine_options`` and tells ``load``."""
    options = launch.read(engine_options)
    if isinstance(options, launch.Unusable):
        raise FitError(f"--engine-options: {options.problem}")
    return EngineLimits(
        kv_tokens=load["kv_capacity_tokens"],
        max_running=load["max_running"] or options.max_running,
        max_step_tokens=options.max_step_tokens,
        chunk_tokens=options.chunk_tokens,
        itl_target_seconds=options.itl_target_seconds,
        ttft_target_seconds=options.ttft_target_seconds,
    )


async def told_load(admin_url: str) -> dict[str, Any]:
    """Return the load that the engine tells at ``admin_url``; `FitError` where it tells none."""
    answer = await _get(admin_url + ADMIN_LOAD)
    load: dict[str, Any] = answer["load"]
    return load


async def told_costs(admin_url: str) -> dict[str, float]:
    """Return what the engine says that its steps cost, by part; empty where it does not say."""
    async with aiohttp.ClientSession() as session, session.get(admin_url + METRICS) as response:
        text = await response.text() if response.status == 200 else ""
    return {part: float(value) for part, value in _COST.findall(text)}


async def _get(url: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        if response.status != 200:
            raise FitError(f"{url} answers {response.status}: name the engine's admin API with --admin-url")
        return await response.json()


async def measure(
    client: Asks, limits: EngineLimits, options: FitOptions, *, seed: int, say: Callable[[str], object]
) -> list[Equation]:
    """Ask round after round until the time is up; `fit_probes.ProbeError` where an answer fails."""
    random = Random(seed)
    most = min(options.longest_tokens, limits.kv_tokens // 2 - _ROOM_TOKENS)
    planned = probes(longest_tokens=most, max_running=limits.max_running, kv_tokens=limits.kv_tokens)
    deadline = time.monotonic() + options.seconds
    # What was never computed before is slower: memory is touched, threads are placed.
    for _ in range(2):
        await ask(Alone(most), client, chunk_tokens=limits.chunk_tokens, random=random)
    equations: list[Equation] = []
    began = ended = time.monotonic()
    # Another round only if it would be over in time, going by the one before.
    while not equations or ended + (ended - began) <= deadline:
        began = ended
        for probe in planned:
            equation = await ask(probe, client, chunk_tokens=limits.chunk_tokens, random=random)
            if equation is not None:
                equations.append(equation)
        ended = time.monotonic()
        say(f"{len(equations)} answers to probes")
    return equations


def model_of(
    fitted: Fitted, limits: EngineLimits, *, model: str, engine_options: Sequence[str], rounds: int
) -> LatencyModel:
    """Return the latency model, with a note of what was measured, where and when."""
    noted = {
        "model": model,
        "machine": machine_facts(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "engine_options": list(engine_options),
        "rounds": rounds,
        "median_error": round(fitted.median_error, 4),
        "residuals": [asdict(each) for each in fitted.residuals],
    }
    return LatencyModel(steps=fitted.steps, requests=fitted.requests, limits=limits, noted=noted)


def table(fitted: Fitted, own: Mapping[str, float]) -> str:
    """Return costs and residuals as text; ``own``: what the engine says itself, by part."""
    steps = asdict(fitted.steps)
    lines = [f"{'cost':<24}{'fitted':>12}{'of the engine':>16}"]
    for part in STEP_COSTS:
        told = f"{1e6 * own[part]:.4g}" if part in own else "-"
        lines.append(f"{part + ', µs':<24}{1e6 * steps[part]:>12.4g}{told:>16}")
    for part, seconds in asdict(fitted.requests).items():
        lines.append(f"{part + ', µs':<24}{1e6 * seconds:>12.4g}{'-':>16}")
    width = max(len(each.probe) for each in fitted.residuals)
    lines += ["", f"{'probe':<{width}}{'measured, ms':>14}{'told, ms':>10}{'ratio':>7}"]
    lines += [
        f"{each.probe:<{width}}{1e3 * each.measured_seconds:>14.1f}{1e3 * each.told_seconds:>10.1f}{each.ratio:>7.2f}"
        for each in fitted.residuals
    ]
    lines.append(f"\nHalf of the probes are told within {fitted.median_error:.1%}.")
    return "\n".join(lines)


async def fit_engine(
    client: Asks,
    options: FitOptions,
    *,
    admin_url: str,
    model: str,
    engine_options: Sequence[str],
    seed: int,
    say: Callable[[str], object],
) -> LatencyModel:
    """Measure the engine behind ``client`` and ``admin_url``, write the model to ``options.file`` and return it."""
    limits = limits_of(engine_options, await told_load(admin_url))
    equations = await measure(client, limits, options, seed=seed, say=say)
    fitted = fit(equations)
    rounds = len(equations) // len(fitted.residuals)
    found = model_of(fitted, limits, model=model, engine_options=engine_options, rounds=rounds)
    say(table(fitted, await told_costs(admin_url)))
    options.file.write_text(found.to_json(), encoding="utf-8")
    return found
