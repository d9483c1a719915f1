"""The gateway's launch options: one typed value, read from argv; anything unknown or malformed refuses to start."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from yarl import URL

from sapwood_contract.launch import ConsoleName
from sapwood_contract.routing import CacheSharing, RoutingPolicy
from sapwood_gateway.core.listed_engines import QueueLimits
from sapwood_gateway.core.quotas import WhenUnknown
from sapwood_gateway.core.routes import ServiceKey
from sapwood_gateway.shell.prompts import PATIENCE_SECONDS

POLICIES: Mapping[str, RoutingPolicy] = {
    "least-load": "LeastLoad",
    "round-robin": "RoundRobin",
    "prefix-affinity": "PrefixAffinity",
}
CACHE_SHARING: Mapping[str, CacheSharing] = {"none": "None", "tenant": "Tenant", "group": "Group", "public": "Public"}


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
    """Empty: discover them, in ``discovery_file`` or in the cluster."""
    prompt_patience_seconds: float
    discovery_file: Path | None
    """None: no file says where the engines are."""
    tenants: Path | None
    secret_file: Path | None
    engine_credential_file: Path | None
    admin_key_file: Path | None
    """None: nobody is asked for an admin key."""
    console: ConsoleName
    operator_url: str | None
    """Whom the console asks how services scale; None: nobody."""
    cache_sharing: CacheSharing
    """Of ``engines``; a service of the cluster has its own."""
    policy: RoutingPolicy
    """Of ``engines``; a service of the cluster has its own."""
    queue: QueueLimits
    """Of ``engines``, likewise."""
    quota_store_url: str | None
    """Where several gateways count what tenants use; None: each in itself. It may hold a password."""
    quota_store_failure: WhenUnknown
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
    otlp_endpoint: str | None
    """None: no traces are kept."""
    trace_sampling_ratio: float
    log_level: str


def parse(argv: Sequence[str]) -> GatewayOptions:
    """Read ``argv``; on anything unknown or malformed print what is wrong and exit with code 2."""
    parser = _parser()
    given = parser.parse_args(list(argv))
    if given.engine and (given.namespace or given.service):
        parser.error("--engine and --namespace or --service: engines are either listed or discovered in the cluster")
    if given.discovery_file and (given.engine or given.namespace):
        parser.error("--discovery-file and --engine or --namespace: the file says everything about the engines")
    if given.engine and given.secret_file:
        parser.error("--engine and --secret-file: listed engines have one credential, give --engine-credential-file")
    if given.engine_credential_file and not given.engine:
        parser.error("--engine-credential-file without --engine: credentials come from --secret-file")
    if given.engine and given.tenants and not given.engine_credential_file:
        parser.error(
            "--tenants with --engine needs --engine-credential-file: engines must know who says whose a prompt is"
        )
    if given.cache_sharing and not (given.engine and given.tenants):
        parser.error("--cache-sharing without --engine and --tenants: a service of the cluster has its own")
    if given.policy and not given.engine:
        parser.error("--policy without --engine: a service of the cluster says itself how it is routed")
    if not given.engine and (given.queue_max_requests or given.queue_max_wait_seconds):
        parser.error(
            "--queue-max-… without --engine: a service of the cluster says itself how many requests wait for it"
        )
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
        prompt_patience_seconds=given.prompt_patience_seconds,
        discovery_file=given.discovery_file,
        tenants=given.tenants,
        secret_file=given.secret_file,
        engine_credential_file=given.engine_credential_file,
        admin_key_file=given.admin_key_file,
        console=given.console,
        operator_url=given.operator_url,
        cache_sharing=CACHE_SHARING[given.cache_sharing or "tenant"],
        policy=POLICIES[given.policy or "least-load"],
        queue=QueueLimits(given.queue_max_requests or 0, given.queue_max_wait_seconds or 30.0),
        quota_store_url=given.quota_store,
        quota_store_failure=given.quota_store_failure,
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
        otlp_endpoint=given.otlp_endpoint,
        trace_sampling_ratio=given.trace_sampling_ratio,
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
        "--discovery-file",
        type=Path,
        metavar="PATH",
        help="a file with the ConfigMaps, EndpointSlices and Tenants of a cluster, instead of one; read anew on change",
    )
    add(
        "--tenants",
        type=Path,
        metavar="PATH",
        help="a file with Tenant documents, read again on change; with --engine every caller then needs a key of one",
    )
    add(
        "--cache-sharing",
        choices=tuple(CACHE_SHARING),
        help="with whom tenants of listed engines share computed prefixes, by default tenant: with nobody",
    )
    add(
        "--secret-file",
        type=Path,
        metavar="PATH",
        help="the installation's secret, the operator's too: engines know the gateway by what is derived from it",
    )
    add(
        "--engine-credential-file",
        type=Path,
        metavar="PATH",
        help="by what listed engines know the gateway: the file of their --gateway-credential-file",
    )
    add(
        "--console",
        choices=get_args(ConsoleName),
        default="auto",
        help="serve the console at /ui of the OpenAI API's port; auto: where --host is this machine alone",
    )
    add(
        "--admin-key-file",
        type=Path,
        metavar="PATH",
        help="keys, one a line, any of which opens the console's data; without it they are open, or closed where a "
        "service asks for API keys",
    )
    add(
        "--operator-url",
        type=_receiver,
        metavar="URL",
        help="address of the operator's own port, which the console asks how services scale; not given: none is",
    )
    add(
        "--policy",
        choices=tuple(POLICIES),
        help="how one of these engines is chosen, by default least-load; prefix-affinity: by who has computed the "
        "prompt's beginning",
    )
    add(
        "--queue-max-requests",
        type=_whole,
        help="how many requests wait for one of these engines while none has room; not given: none does",
    )
    add("--queue-max-wait-seconds", type=_seconds, help="how long one of them waits, by default 30")
    add(
        "--prompt-patience-seconds",
        type=_seconds,
        default=PATIENCE_SECONDS,
        help="where prefixes decide, how long a request waits for its prompt to be read; then it is routed by load",
    )
    add(
        "--quota-store",
        type=_quota_store,
        default="memory",
        metavar="memory|redis://…",
        help="where tenants' use is counted: in this process, or in a Redis that several gateways share",
    )
    add(
        "--quota-store-failure",
        choices=("open", "closed"),
        default="open",
        help="requests of tenants with quotas while the store does not answer: let in uncounted, or refused",
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
    add(
        "--otlp-endpoint",
        type=_receiver,
        metavar="URL",
        help="address of an OTLP receiver over HTTP, such as http://127.0.0.1:4318, where traces go; not given: none",
    )
    add(
        "--trace-sampling-ratio",
        type=_share,
        default=0.01,
        help="share of the requests without a trace of their own that are traced; a caller's own decision comes first",
    )
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


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text} cannot be used: take a share from 0 to 1")
    return number


def _receiver(text: str) -> str:
    try:
        url = URL(text)
        if url.scheme in ("http", "https") and url.host and not url.query_string:
            return text
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not an address such as http://127.0.0.1:4318")


def _quota_store(text: str) -> str | None:
    if text == "memory":
        return None
    try:
        url = URL(text)
        is_database = (url.path.removeprefix("/") or "0").isdecimal()
        if url.scheme in ("redis", "rediss") and url.host and is_database and not url.query_string:
            return text
    except ValueError:
        pass
    # Not quoted: there may be a password in it.
    raise argparse.ArgumentTypeError("it is neither memory nor an address such as redis://127.0.0.1:6379/0")


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
