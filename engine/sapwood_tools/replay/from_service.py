"""`sapwood replay --from-service`: its options, and the trace that they name."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from pathlib import Path

from sapwood_tools.admin_client import add_key_file, admin_url
from sapwood_tools.replay.gateways import Gateway, find
from sapwood_tools.replay.service_trace import Answer, merged, missing, read_answer, replayable, save
from sapwood_tools.replay.trace import TraceRequest

DEFAULT_NAMESPACE = "default"
_OWN = {"namespace": "--namespace", "gateway": "--gateway", "system_namespace": "--system-namespace"} | {
    "key": "--key-file",
    "save": "--save",
}
"""Options that mean something with ``--from-service`` alone."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what belongs to ``--from-service``."""
    group = parser.add_argument_group("a running service", "with --from-service, instead of a trace in a file")
    add = group.add_argument
    add("--from-service", metavar="NAME", help="the last hour of this InferenceService, as its gateways tell it")
    add("-n", "--namespace", metavar="NAMESPACE", help=f"of the service (default: {DEFAULT_NAMESPACE})")
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--gateway",
        type=admin_url,
        action="append",
        metavar="URL",
        help="a gateway's admin address; may be repeated (default: that of a sapwood local of yours)",
    )
    where.add_argument(
        "--system-namespace", metavar="NAMESPACE", help="of Sapwood's release: its gateways are asked through kubectl"
    )
    add_key_file(parser)
    add("--save", type=Path, metavar="FILE", help="write the trace, which has lengths and numbers and nothing said")


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End the program where it is not clear what to replay."""
    if options.from_service is None:
        given = [option for name, option in _OWN.items() if getattr(options, name) is not None]
        if given:
            parser.error(f"{given[0]} without --from-service: a trace in a file is complete by itself")
        if options.trace is None:
            parser.error("name a trace, or a running service with --from-service")
    elif options.trace is not None:
        parser.error(f"--from-service and the trace {str(options.trace)!r}: give one of them")


def service_trace(options: argparse.Namespace) -> list[TraceRequest]:
    """Return the last hour of the service; what is missing of it is told on stderr.

    Raises `OSError` where it cannot be written, and `NoServiceTrace`.
    """
    namespace = options.namespace or DEFAULT_NAMESPACE
    answers = asyncio.run(_ask(options, namespace))
    for sentence in missing(answers):
        print(f"sapwood replay: {sentence}", file=sys.stderr)
    requests = merged(answers)
    if options.save is not None:
        save(requests, options.save)
    return replayable(requests, f"{namespace}/{options.from_service}")


async def _ask(options: argparse.Namespace, namespace: str) -> list[Answer]:
    gateways = await find(options.gateway or (), options.system_namespace, options.key, os.environ)
    # Gateways name blocks alike for one reading, and nobody can tell beforehand how.
    query = {"namespace": namespace, "service": options.from_service, "reading": secrets.token_hex(16)}

    async def ask(gateway: Gateway) -> Answer:
        return read_answer(gateway.name, await gateway.ask(query))

    return list(await asyncio.gather(*map(ask, gateways)))
