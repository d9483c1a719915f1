"""``sapwood top``: reads argv and the environment, finds the engines, and shows them or prints them once."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sapwood_tools.admin_client import DEFAULT_URL, add_key_file, admin_url
from sapwood_tools.top.app import TopApp
from sapwood_tools.top.engines import Place, local_place, local_places, named
from sapwood_tools.top.once import snapshot
from sapwood_tools.top.poller import is_alive, polling
from sapwood_tools.top.views import Views


def main(argv: Sequence[str]) -> int:
    """Show running engines until ``q``, or print them once; 1 where once nobody answers."""
    options = _parser().parse_args(list(argv))
    try:
        place = asyncio.run(_place(options, os.environ))
        if options.once or not sys.stdout.isatty():
            return asyncio.run(_once(place, options.interval))
        asyncio.run(_live(place, options.interval))
    except BrokenPipeError:
        # As `| head`: what is still buffered would be written, and fail again, at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        pass
    return 0


async def _place(options: argparse.Namespace, environment: Mapping[str, str]) -> Place:
    """Return what argv names; else what a `sapwood local` runs; else the engine that `make serve` starts."""
    if options.discovery_file is not None:
        return local_place(options.discovery_file, options.gateway, options.key)
    if not options.engine:
        for place in local_places(environment, options.key):
            if options.gateway in (None, place.gateway) and await is_alive(place.gateway or ""):
                return place
    usual = [DEFAULT_URL] if options.gateway is None else []
    return named(options.engine or usual, options.gateway, options.key)


async def _live(place: Place, interval_seconds: float) -> None:
    async with polling(place) as source:
        await TopApp(source, interval_seconds=interval_seconds).run_async()


async def _once(place: Place, interval_seconds: float) -> int:
    """Print what two polls say: the second one is what rates need."""
    views = Views()
    async with polling(place) as source:
        views.take(await source.ask())
        if _somebody_answers(views):
            await asyncio.sleep(interval_seconds)
            views.take(await source.ask())
    if not _somebody_answers(views):
        for line in _problems(views) or ["there is no engine"]:
            print(f"sapwood top: {line}", file=sys.stderr)
        return 1
    print(snapshot(views.engines, views.gateway), end="", flush=True)
    return 0


def _somebody_answers(views: Views) -> bool:
    has_gateway = views.gateway is not None and views.gateway.now is not None
    return has_gateway or any(view.now.has_answer for view in views.engines)


def _problems(views: Views) -> list[str]:
    gateway = [] if views.gateway is None else [f"{views.gateway.url} {views.gateway.problem}"]
    return [*gateway, *(f"{view.url} {view.now.problem}" for view in views.engines)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sapwood top",
        allow_abbrev=False,
        description="Show what running engines do: requests, cache and replicas. Without --engine: those of a "
        "sapwood local of yours, or else the one at " + DEFAULT_URL + ".",
    )
    add = parser.add_argument
    add(
        "--engine",
        type=admin_url,
        action="append",
        default=[],
        metavar="URL",
        help="an engine's admin address; may be repeated",
    )
    add("--gateway", type=admin_url, metavar="URL", help="a gateway's admin address: adds a line with its figures")
    add(
        "--discovery-file",
        type=Path,
        metavar="PATH",
        help="file by which the gateway of a sapwood local finds its engines, where that has a --state-folder",
    )
    add_key_file(parser)
    add("--interval", type=_seconds, default=1.0, metavar="SECONDS", help="pause between two looks (default: 1)")
    add("--once", action="store_true", help="print one snapshot as plain text, as without a terminal")
    return parser


def _seconds(text: str) -> float:
    number = float(text)
    if not 0.1 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"{text} cannot be used: take 0.1 to 3600 seconds")
    return number
