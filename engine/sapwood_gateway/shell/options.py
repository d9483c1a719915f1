"""The gateway's launch options: one typed value, read from argv; anything unknown or malformed refuses to start."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from yarl import URL

from sapwood_contract.routing import RoutingPolicy
from sapwood_gateway.core.routes import ServiceKey

POLICIES: Mapping[str, RoutingPolicy] = {
    "least-load": "LeastLoad",
    "round-robin": "RoundRobin",
    "prefix-affinity": "PrefixAffinity",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAddress:
    """One engine of ``--engine``."""

    url: URL
    admin_url: URL


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Options of ``sapwood gateway``; each one's meaning is in its help text."""

    host: str
    port: int
    admin_host: str
    admin_port: int
    """0 takes a free one."""
    engines: tuple[EngineAddress, ...]
    """Empty: discover them in the cluster."""
    policy: RoutingPolicy
    """Of ``engines``; a service of the cluster has its own."""
    namespaces: tuple[str, ...]
    """Empty: all."""
    service: ServiceKey | None
    max_body_bytes: int
    max_held_bytes: int
    body_timeout_seconds: float
    idle_timeout_seconds: float
    max_attempts: int
    connect_timeout_seconds: float
    first_byte_timeout_seconds: float | None
    load_interval_seconds: float
    drain_seconds: float
    log_level: str


def parse(argv: Sequence[str]) -> GatewayOptions:
    """Read ``argv``; on anything unknown or malformed print what is wrong and exit with code 2."""
    parser = _parser()
    given = parser.parse_args(list(argv))
    if given.engine and (given.namespace or given.service):
        parser.error("--engine and --namespace or --service: engines are either listed or discovered in the cluster")
    if given.policy and not given.engine:
        parser.error("--policy without --engine: a service of the cluster says itself how it is routed")
    if given.max_held_bytes < given.max_body_bytes:
        parser.error("--max-held-bytes: one body of --max-body-bytes has no room in it")
    admin_port = given.admin_port
    if admin_port is None:
        admin_port = given.port + 1 if given.port else 0
    return GatewayOptions(
        host=given.host,
        port=given.port,
        admin_host=given.admin_host,
        admin_port=admin_port,
        engines=tuple(dict.fromkeys(given.engine)),
        policy=POLICIES[given.policy or "least-load"],
        namespaces=tuple(dict.fromkeys(given.namespace)),
        service=given.service,
        max_body_bytes=given.max_body_bytes,
        max_held_bytes=given.max_held_bytes,
        body_timeout_seconds=given.body_timeout_seconds,
        idle_timeout_seconds=given.idle_timeout_seconds,
        max_attempts=given.max_attempts,
        connect_timeout_seconds=given.connect_timeout_seconds,
        first_byte_timeout_seconds=given.first_byte_timeout_seconds,
        load_interval_seconds=given.load_interval_seconds,
        drain_seconds=given.drain_seconds,
        log_level=given.log_level,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sapwood gateway",
        allow_abbrev=False,
        description="One OpenAI address in front of many engines: listed here, or discovered in the cluster.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address of the OpenAI API")
    add("--port", type=_port, default=8080, help="its port; 0 takes a free one")
    add("--admin-host", default="127.0.0.1", help="address of probes and metrics")
    add("--admin-port", type=_port, help="their port; not given: one more than --port, or 0 with it")
    add(
        "--engine",
        action="append",
        type=_engine,
        default=[],
        metavar="URL[,ADMIN_URL]",
        help="an engine, without a cluster; its admin address is by default one port further; may be repeated",
    )
    add(
        "--policy",
        choices=tuple(POLICIES),
        help="how one of these engines is chosen, by default least-load; prefix-affinity: by who has computed the "
        "prompt's beginning",
    )
    add(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="where in the cluster to look for services; may be repeated; not given: everywhere",
    )
    add(
        "--service",
        type=_service,
        metavar="NAME.NAMESPACE",
        help="the Service in the cluster that leads here: its names are those of no model's service",
    )
    add("--max-body-bytes", type=_whole, default=16 * 2**20, help="a larger request is refused, as engines do")
    add(
        "--max-held-bytes",
        type=_whole,
        default=256 * 2**20,
        help="of all requests under way; beyond, they are refused. Memory must allow for three times as much",
    )
    add("--body-timeout-seconds", type=_seconds, default=30.0, help="how long a client may take to send a body")
    add(
        "--idle-timeout-seconds",
        type=_seconds,
        default=75.0,
        help="how long a connection may bring no whole head of a request; more than proxies before it keep theirs open",
    )
    add("--max-attempts", type=_whole, default=3, help="most replicas that one request is sent to")
    add("--connect-timeout-seconds", type=_seconds, default=2.0, help="how long a replica may take to accept")
    add(
        "--first-byte-timeout-seconds",
        type=_seconds,
        help="how long a replica may take to begin its answer; not given: as long as it takes",
    )
    add("--load-interval-seconds", type=_seconds, default=1.0, help="pause between two looks at the replicas' load")
    add("--drain-seconds", type=_seconds, default=30.0, help="after SIGTERM, how long running requests may go on")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="least severe line written")
    return parser


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 0 to 65535")
    return number


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} cannot be used: take 1 or more")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} cannot be used: take a number of seconds above 0")
    return number


def _service(text: str) -> ServiceKey:
    match text.split("."):
        case [name, namespace] if name and namespace:
            return ServiceKey(namespace, name)
    raise argparse.ArgumentTypeError(f"{text!r} is not NAME.NAMESPACE")


def _engine(text: str) -> EngineAddress:
    first, comma, second = text.partition(",")
    url, port = _address(first)
    admin_url = _address(second)[0] if comma else url.with_port(port + 1)
    return EngineAddress(url=url, admin_url=admin_url)


def _address(text: str) -> tuple[URL, int]:
    """Return an address with its port, also the usual one, and that port."""
    try:
        url = URL(text)
        if url.scheme == "http" and url.host and url.port and url == url.origin():
            return URL(f"http://{url.host_subcomponent}:{url.port}"), url.port
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not an address such as http://127.0.0.1:8000")
