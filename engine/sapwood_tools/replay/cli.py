"""`sapwood replay`: reads the options, replays the trace for each policy and number of replicas, prints as it goes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

from sapwood_gateway.core.affinity import DEFAULT_WEIGHTS, Weights
from sapwood_tools.replay import from_service
from sapwood_tools.replay.autoscale.cli import add_options, replay_autoscaling, trace_of
from sapwood_tools.replay.autoscale.policy_file import UnusablePolicy
from sapwood_tools.replay.curve import compare, measured_curve
from sapwood_tools.replay.curve import table as curve_table
from sapwood_tools.replay.engine import CacheTooSmall
from sapwood_tools.replay.latency import LatencyModelError
from sapwood_tools.replay.one_cache import cached_tokens
from sapwood_tools.replay.policies import POLICIES
from sapwood_tools.replay.report import Bounds, Row, row, table
from sapwood_tools.replay.service_trace import NoServiceTrace
from sapwood_tools.replay.simulate import simulate, speed_for
from sapwood_tools.replay.trace import TraceError, TraceRequest

_WEIGHTS = ", ".join(f"{each.name} ({getattr(DEFAULT_WEIGHTS, each.name)})" for each in fields(Weights))


def main(argv: Sequence[str]) -> int:
    """Replay as ``argv`` says; exit code 1 where the trace cannot be replayed, 2 for wrong options."""
    parser = _parser()
    options = parser.parse_args(list(argv))
    from_service.check(parser, options)
    try:
        if options.autoscale is not None:
            replay_autoscaling(options, print)
            return 0
        if options.mrc:
            print(_curve(trace_of(options), options))
            return 0
        rows = replay(trace_of(options), options, print if options.json else _nowhere)
    except (OSError, TraceError, NoServiceTrace, CacheTooSmall, UnusablePolicy, LatencyModelError) as error:
        print(f"sapwood replay: {error}", file=sys.stderr)
        return 1
    if not options.json:
        print(table(rows))
    return 0


def replay(requests: Sequence[TraceRequest], options: argparse.Namespace, emit: Callable[[str], object]) -> list[Row]:
    """Return a row for each policy and number of replicas; ``emit`` gets each as JSON as soon as it is there."""
    num_tokens = sum(request.prompt.num_tokens for request in requests)
    endless = cached_tokens(requests, None)
    together = {n: cached_tokens(requests, n * options.capacity_blocks) for n in options.replicas}
    rows = []
    for policy in options.policy:
        for num_replicas in options.replicas:
            speed = speed_for(requests, num_replicas, busy=options.busy, token_seconds=options.token_seconds)
            tally = simulate(
                requests,
                policy,
                num_replicas=num_replicas,
                capacity_blocks=options.capacity_blocks,
                speed=speed,
                num_gateways=options.gateways,
                weights=replace(DEFAULT_WEIGHTS, **dict(options.weight)),
            )
            rows.append(row(policy, tally, Bounds(num_tokens, together[num_replicas], endless)))
            emit(rows[-1].to_json())
    return rows


def _curve(requests: Sequence[TraceRequest], options: argparse.Namespace) -> str:
    """Return the miss-ratio curve of one cache beside simulated ones, as text or a JSON object a line."""
    curve = measured_curve(requests, options.capacity_blocks, sample_rate=options.mrc_sample_rate)
    compared = compare(requests, curve)
    return "\n".join(each.to_json() for each in compared) if options.json else curve_table(compared, curve)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sapwood replay",
        allow_abbrev=False,
        description="Replay a trace of requests over replicas, with the gateway's decisions and the engine's cache.",
        epilog="hits, recomputed: of prompt tokens. of one cache: against one LRU cache of all replicas' sizes. load: "
        "tokens computed, the most of a replica against the mean; requests: likewise. foreseen: found as much as the "
        "gateway expected, within a block. Times are those of the speed that --busy implies.",
    )
    add = parser.add_argument
    add(
        "trace",
        type=Path,
        nargs="?",
        help="JSON lines in Mooncake's format: timestamp, input_length, output_length, hash_ids; or builtin:day",
    )
    add("--replicas", type=_counts, default="1,2,4,8,16", help="comma-separated (default: %(default)s)")
    add("--policy", type=_policies, default=",".join(POLICIES), help="comma-separated (default: %(default)s)")
    add(
        "--capacity-blocks", type=_count, default=5000, help="cache of a replica, in blocks of 512 tokens (%(default)s)"
    )
    add("--busy", type=_positive, default=0.6, help="share of the time that prompts took with no cache (%(default)s)")
    add("--token-seconds", type=_positive, default=0.03, help="between two tokens of an answer (%(default)s)")
    add(
        "--weight",
        type=_weight,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"of prefix affinity: {_WEIGHTS}",
    )
    add("--gateways", type=_count, default=1, help="that take turns with the requests, each by itself (%(default)s)")
    add(
        "--mrc",
        action="store_true",
        help="instead: the miss-ratio curve that one engine would export, beside LRU caches of eight sizes simulated",
    )
    add(
        "--mrc-sample-rate",
        type=_rate,
        default=0.05,
        metavar="SHARE",
        help="with --mrc: share of the blocks that the curve follows (%(default)s)",
    )
    add("--json", action="store_true", help="a JSON object a row, as it comes, instead of a table")
    add_options(parser, count=_count, number=_positive)
    from_service.add_options(parser)
    return parser


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return value


def _positive(text: str) -> float:
    if not _number(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not more than 0")
    return _number(text)


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in POLICIES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(POLICIES)}")
    return names


def _rate(text: str) -> float:
    if not 0.001 <= _number(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0.001 to 1")
    return _number(text)


def _weight(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in {each.name for each in fields(Weights)}:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {_WEIGHTS}")
    return name, _number(value)


def _nowhere(_: str) -> None:
    pass
