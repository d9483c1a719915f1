"""`sapwood replay --autoscale`: its options, and what it prints and writes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sapwood_tools.replay.autoscale.compare import Scene, compare, foresee
from sapwood_tools.replay.autoscale.controllers import Targets
from sapwood_tools.replay.autoscale.day import Day, make_day
from sapwood_tools.replay.autoscale.fleet import FleetSettings
from sapwood_tools.replay.autoscale.pace import Pace, pace_of
from sapwood_tools.replay.autoscale.pods import PodSettings
from sapwood_tools.replay.autoscale.policy_file import read_policy
from sapwood_tools.replay.autoscale.report import Replayed, html, plots, table, targets, to_json
from sapwood_tools.replay.autoscale.tune import chosen, half_of, scores_of
from sapwood_tools.replay.from_service import service_trace
from sapwood_tools.replay.latency import read_model
from sapwood_tools.replay.trace import TraceError, TraceRequest, read_trace

BUILTIN_DAY = "builtin:day"
CONTROLLERS = ("sapwood", "hpa-queue", "keda-kv", "current-hit", "slo-ratio")


def add_options(
    parser: argparse.ArgumentParser, *, count: Callable[[str], int], number: Callable[[str], float]
) -> None:
    """Add what belongs to ``--autoscale``; ``count`` and ``number`` read numbers from 1 on, and above 0."""
    group = parser.add_argument_group("autoscaling", "with --autoscale, over a number of replicas that is decided")
    add = group.add_argument
    add("--autoscale", type=Path, metavar="POLICY", help="YAML: an AutoscalingPolicy, or a service's spec.autoscaling")
    add(
        "--controllers", type=_controllers, default=",".join(CONTROLLERS), help="comma-separated (default: %(default)s)"
    )
    add("--speed", type=number, default=5000.0, help="prompt tokens a second that a replica computes (%(default)s)")
    add("--model", type=Path, metavar="FILE", help="instead of --speed: a latency model of sapwood bench --fit")
    add("--start-seconds", type=number, default=60.0, help="from a pod's being asked for to its weights (%(default)s)")
    add("--warm-seconds", type=number, default=30.0, help="most that a new one computes prefixes (%(default)s)")
    add("--opening-seconds", type=number, default=300.0, help="at the beginning, in which nobody decides (%(default)s)")
    add("--seed", type=count, default=1, help=f"of {BUILTIN_DAY} (%(default)s)")
    add("--hours", type=number, default=24.0, help=f"of {BUILTIN_DAY} (%(default)s)")
    add("--tune", action="store_true", help="choose each controller's target on the trace's first half")
    add("--report", type=Path, metavar="FILE", help="write an HTML page with tables and plots")
    add("--plots", metavar="PREFIX", help="write the plots as PREFIX-replicas.svg, -ttft.svg and -hits.svg")


def trace_of(options: argparse.Namespace) -> list[TraceRequest]:
    """Return the requests that the options name; raises as `read_trace` and `service_trace`."""
    if options.from_service is not None:
        return service_trace(options)
    if str(options.trace) == BUILTIN_DAY:
        return make_day(Day(seed=options.seed, hours=options.hours))
    return read_trace(options.trace)


def replay_autoscaling(options: argparse.Namespace, emit: Callable[[str], object]) -> None:
    """Compare the controllers; ``emit`` gets lines to print.

    Raises `OSError`, `UnusablePolicy`, and what `trace_of`, `read_model` and `compare` raise.
    """
    requests = trace_of(options)
    if (seconds := requests[-1].arrival_seconds) <= options.opening_seconds:
        raise TraceError(
            f"the last request comes after {seconds:,.0f} s, and the first {options.opening_seconds:g} s are not "
            "scored: give --opening-seconds less, or a longer trace"
        )
    scene = scene_of(options, requests)
    said = (lambda score: emit(to_json(score))) if options.json else (lambda _: None)
    foreseen = foresee(requests, scene)
    if options.tune:
        scene = chosen(requests, scene, foreseen, options.controllers)
    runs, scores = compare(requests, scene, foreseen, options.controllers, said)
    replayed = Replayed(
        title=options.from_service or Path(options.trace).stem,
        ttft_seconds=scene.ttft_seconds,
        runs=runs,
        scores=scores,
        settings=_assumed(options, scene),
    )
    if not options.json:
        emit(table(scores))
        emit(targets(scores[0], scores[1:-1]))
    if options.tune and not options.json:
        half, end = half_of(requests), requests[-1].arrival_seconds + 1.0
        for title, begin, until in (("first half (chosen by)", 0.0, half), ("second half", half, end)):
            emit(f"\n{title}\n\n{table(scores_of(runs, begin, until, scene.ttft_seconds))}")
        emit(f"\nchosen: prefillUtilization {scene.policy.prefill_utilization:g}, {scene.targets}")
    if options.report is not None:
        options.report.write_text(html(replayed), encoding="utf-8")
    for name, picture in plots(replayed).items() if options.plots else ():
        Path(f"{options.plots}-{name}.svg").write_text(picture + "\n", encoding="utf-8")


def scene_of(options: argparse.Namespace, requests: Sequence[TraceRequest]) -> Scene:
    """Return what the options assume."""
    policy = read_policy(options.autoscale)
    assert policy.ttft_p90_seconds is not None, "read_policy lets no policy through without a promise"
    if options.model is not None:
        mean = sum(each.prompt.num_tokens + each.output_tokens / 2 for each in requests) / len(requests)
        pace = pace_of(read_model(options.model), mean_context_tokens=mean)
    else:
        pace = Pace(prefill_token=1 / options.speed, step=options.token_seconds)
    return Scene(
        policy=policy,
        ttft_seconds=policy.ttft_p90_seconds,
        fleet=FleetSettings(
            pods=PodSettings(capacity_blocks=options.capacity_blocks, pace=pace),
            start_seconds=options.start_seconds,
            warm_seconds=options.warm_seconds,
        ),
        opening_seconds=options.opening_seconds,
        targets=replace(Targets(), utilization=policy.prefill_utilization),
    )


def _assumed(options: argparse.Namespace, scene: Scene) -> dict[str, str]:
    pods, policy = scene.fleet.pods, scene.policy
    return {
        "promised, 90 of 100": f"{scene.ttft_seconds:g} s to the first token",
        "a replica computes": f"{pods.pace.prefill_tokens_per_second:,.0f} prompt tokens a second",
        "a replica's cache": f"{pods.capacity_blocks:,} blocks of 512 tokens",
        "a start takes": f"{scene.fleet.start_seconds:g} s, and up to {scene.fleet.warm_seconds:g} s for prefixes",
        "replicas": f"{policy.min_replicas} to {policy.max_replicas}",
        "prefillUtilization, scaleDownMargin": f"{policy.prefill_utilization:g}, {policy.scale_down_margin:g}",
        "windows up, down": f"{policy.up.window_seconds:g} s, {policy.down.window_seconds:g} s",
        "not scored": f"the first {options.opening_seconds:g} s",
    }


def _controllers(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in CONTROLLERS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(CONTROLLERS)}")
    return names
