"""The life of the gateway: listening, discovering, serving, draining, ending.

A first SIGTERM or SIGINT, or the death of a background task, makes it not ready, closes the port and lets requests
under way finish for a while; those that are left then end with an error. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice

import aiohttp
from aiohttp import web

from sapwood_contract.http import EngineLoad
from sapwood_contract.launch import ConsoleName
from sapwood_gateway.core.balance import Report
from sapwood_gateway.core.block_names import facts_of
from sapwood_gateway.core.circuit import CircuitSettings
from sapwood_gateway.core.fleet import Fleet
from sapwood_gateway.core.prefix_routing import MOST_NAMINGS
from sapwood_gateway.core.reading_turns import ServedModel
from sapwood_gateway.core.retry import RetrySettings
from sapwood_gateway.core.routes import Replica
from sapwood_gateway.shell.admin_keys import AdminKeys
from sapwood_gateway.shell.app import Traffic, build_admin_app, build_app
from sapwood_gateway.shell.auth import Auth
from sapwood_gateway.shell.body import BodyLimits
from sapwood_gateway.shell.console import Console
from sapwood_gateway.shell.credentials import Credentials, Shown
from sapwood_gateway.shell.discovery.cluster import Api, ClusterDiscovery
from sapwood_gateway.shell.discovery.file import FileDiscovery
from sapwood_gateway.shell.discovery.listed import ListedDiscovery, listed_replica
from sapwood_gateway.shell.ending import Ending
from sapwood_gateway.shell.kv_events import EventFollower, Publisher
from sapwood_gateway.shell.limiter import Limiter
from sapwood_gateway.shell.load import Heard, LoadPoller, Unreachable
from sapwood_gateway.shell.metrics import GatewayMetrics
from sapwood_gateway.shell.options import GatewayOptions
from sapwood_gateway.shell.prompts import Prompts
from sapwood_gateway.shell.proxy import Proxy, ProxySettings
from sapwood_gateway.shell.quota_store import LocalQuotaStore, SharedQuotaStore
from sapwood_gateway.shell.reading_process import ReadingProcess
from sapwood_gateway.shell.route_trace import NoTraces, RouteTraces
from sapwood_gateway.shell.server import Runner
from sapwood_gateway.shell.tenancy import Trust, listed_tenancy
from sapwood_gateway.shell.tokenizers import Tokenizers
from sapwood_gateway.shell.upstream import new_session
from sapwood_gateway.shell.workloads import ServiceTraces

_log = logging.getLogger(__name__)

Discovery = ClusterDiscovery | FileDiscovery | ListedDiscovery

_LAST_BYTES_SECONDS = 3.0
"""When the port closes, how long a client may take to read the end of its answer."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Two listening sockets."""

    api: socket.socket
    admin: socket.socket


async def run_gateway(options: GatewayOptions, ports: Ports, cluster: Api | None, trust: Trust) -> int:
    """Serve until something makes it end; return the exit code.

    ``cluster``: None where engines are listed.
    """
    ending = Ending()
    draw = random.SystemRandom()
    fleet = Fleet(circuit=CircuitSettings(), first_turn=draw.randrange(2**16))
    metrics = GatewayMetrics(
        served=lambda: fleet.routes.served(),
        census=lambda: fleet.census(time.monotonic()),
        num_running=lambda: fleet.num_own,
        num_queued=lambda: proxy.waiting.census(),
        num_blocks=lambda: fleet.prefixes.num_blocks,
    )
    traffic = Traffic()
    credentials = Credentials(trust.secrets, lambda: fleet.routes)
    auth = Auth(
        tenants=lambda: trust.directory.tenants,
        credential_of=credentials.of,
        denied=lambda: metrics.rejected("auth"),
    )
    async with (
        new_session(options.connect_timeout_seconds) as session,
        contextlib.aclosing(ReadingProcess()) as reading,
        _limiting(options, metrics, ending) as limiter,
        _tracing(options, ports) as traces,
    ):
        tokenizers = Tokenizers(session, reading, shown=credentials.shown_to)
        prompts = Prompts(reading, patience_seconds=options.prompt_patience_seconds)
        proxy = Proxy(
            fleet,
            session,
            auth=auth,
            limiter=limiter,
            prompts=prompts,
            metrics=metrics,
            settings=_proxy_settings(options),
            draw=draw.random,
            traces=traces,
        )
        console = None
        if is_console_on(options.console, ports.api):
            console = Console(
                fleet,
                session,
                shown=credentials.shown_to,
                admin_keys=trust.admin_keys,
                operator_url=options.operator_url,
            )
        api = build_app(fleet, proxy, traffic=traffic, auth=auth, console=console)
        idle_seconds = options.idle_timeout_seconds
        async with _discovering(
            options, fleet, session, credentials.shown_to, tokenizers, metrics, cluster, trust, ending
        ) as discovery:
            admin = build_admin_app(
                metrics,
                traffic=traffic,
                is_discovered=lambda: discovery.is_ready,
                demand=proxy.waiting.demand,
                traces=ServiceTraces(
                    fleet,
                    proxy.workloads,
                    admin_keys=AdminKeys(trust.admin_keys),
                    secret=trust.secrets.installation,
                ),
            )
            async with (
                _served(admin, ports.admin, idle_seconds=idle_seconds),
                _served(api, ports.api, idle_seconds=idle_seconds) as listening,
            ):
                ending.heed_signals()
                _log.info("serving", extra={"port": ports.api.getsockname()[1]})
                await ending.begun.wait()
                traffic.is_draining = True
                await listening.stop()
                await _drain(traffic, proxy, options.drain_seconds)
        prompts.close()
    return ending.exit_code


@contextlib.asynccontextmanager
async def _tracing(options: GatewayOptions, ports: Ports) -> AsyncIterator[RouteTraces]:
    """Keep traces for so long, where they have somewhere to go; what is left then is sent, for a bounded time."""
    if options.otlp_endpoint is None:
        yield NoTraces()
        return
    # Loaded where it has something to do.
    from sapwood_gateway.shell.route_spans import SpannedRoutes  # noqa: PLC0415
    from sapwood_tracing.setup import Tracing, TracingSettings  # noqa: PLC0415

    tracing = Tracing(
        TracingSettings(
            endpoint=options.otlp_endpoint,
            sampling_ratio=options.trace_sampling_ratio,
            service_name="sapwood-gateway",
            service_version=version("sapwood"),
            instance_id=f"{socket.gethostname()}:{ports.api.getsockname()[1]}",
        )
    )
    try:
        yield SpannedRoutes(tracing)
    finally:
        await asyncio.to_thread(tracing.close)


@contextlib.asynccontextmanager
async def _limiting(options: GatewayOptions, metrics: GatewayMetrics, ending: Ending) -> AsyncIterator[Limiter]:
    """Hold callers to their quotas for so long; what has ended by then is settled."""
    store = LocalQuotaStore() if options.quota_store_url is None else SharedQuotaStore(options.quota_store_url)
    limiter = Limiter(store, when_unknown=options.quota_store_failure, metrics=metrics)
    keeping = asyncio.create_task(limiter.run(), name="quota store")
    ending.watch(keeping)
    try:
        yield limiter
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await limiter.settled()
        await store.close()


def _proxy_settings(options: GatewayOptions) -> ProxySettings:
    return ProxySettings(
        first_byte_timeout_seconds=options.first_byte_timeout_seconds,
        body=BodyLimits(
            max_bytes=options.max_body_bytes,
            max_held_bytes=options.max_held_bytes,
            timeout_seconds=options.body_timeout_seconds,
        ),
        retry=RetrySettings(max_attempts=options.max_attempts),
    )


@contextlib.asynccontextmanager
async def _discovering(
    options: GatewayOptions,
    fleet: Fleet,
    session: aiohttp.ClientSession,
    shown: Shown,
    tokenizers: Tokenizers,
    metrics: GatewayMetrics,
    cluster: Api | None,
    trust: Trust,
    ending: Ending,
) -> AsyncIterator[Discovery]:
    """Keep the fleet's routes and reports, and the tenants, up to date for so long."""
    discovery: Discovery
    looking: list[asyncio.Task[None]] = []
    if trust.file is not None:
        looking.append(asyncio.create_task(trust.file.run(), name="file of tenants"))
    if options.discovery_file is not None:
        discovery = FileDiscovery(
            fleet, options.discovery_file, gateway=options.service, take_tenants=trust.directory.take_cluster
        )
        looking.append(asyncio.create_task(discovery.run(), name="discovery file"))
    elif cluster is None:
        discovery = ListedDiscovery(
            fleet,
            [listed_replica(each.url, each.admin_url) for each in options.engines],
            policy=options.policy,
            tenancy=listed_tenancy(options),
            queue=options.queue,
        )
    else:
        discovery = ClusterDiscovery(
            fleet,
            cluster,
            namespaces=options.namespaces,
            gateway=options.service,
            take_tenants=trust.directory.take_cluster,
            failed=metrics.discovery_failed,
            died=ending.died,
            draw=random.SystemRandom().random,
        )
        discovery.start()

    follower = EventFollower(
        session, feed=fleet.prefixes.feed, gap=metrics.event_gap, lag=metrics.event_lag, shown=shown
    )

    def targets() -> list[Replica]:
        follower.follow(publishers_of(fleet))
        tokenizers.want(models_of(fleet))
        return discovery.replicas if isinstance(discovery, ListedDiscovery) else fleet.routes.all_replicas()

    def heard(replica: Replica, said: Heard) -> None:
        if isinstance(discovery, ListedDiscovery):
            discovery.heard(replica, said)
        if isinstance(said, EngineLoad):
            fleet.reported(replica.id, report_of(said, num_own=fleet.num_own_on(replica.id)))
        elif isinstance(said, Unreachable):
            fleet.unreachable(replica.id)

    poller = LoadPoller(
        session, targets=targets, heard=heard, shown=shown, interval_seconds=options.load_interval_seconds
    )
    looking.append(asyncio.create_task(poller.run(), name="load poller"))
    for task in looking:
        ending.watch(task)
    try:
        yield discovery
    finally:
        for task in looking:
            task.cancel()
        if isinstance(discovery, ClusterDiscovery):
            discovery.stop()
        await asyncio.gather(*looking, return_exceptions=True)
        await follower.close()
        await tokenizers.close()


def is_console_on(name: ConsoleName, listening: socket.socket) -> bool:
    """Whether ``--console`` wants the page on a port: ``auto`` where this machine alone reaches it."""
    host = str(listening.getsockname()[0]).partition("%")[0]
    return name == "on" or (name == "auto" and ipaddress.ip_address(host).is_loopback)


def report_of(said: EngineLoad, *, num_own: int) -> Report:
    """Return what counts of an engine's answer."""
    load = said.load
    return Report(
        state=said.state,
        num_requests=load.num_running + load.num_waiting,
        num_waiting_tokens=load.num_waiting_tokens,
        num_own=num_own,
        model=said.model,
        cache=facts_of(said),
        max_running=load.max_running,
        knows_gateway=said.knows_gateway,
    )


def publishers_of(fleet: Fleet) -> dict[str, Publisher]:
    """Return whose cache events are to be followed, and where."""
    known = fleet.prefixes.known
    return {
        replica.id: Publisher(replica.id, replica.admin_url, facts.events)
        for replica in fleet.routes.all_replicas()
        if (facts := known.get(replica.id)) is not None and facts.events is not None
    }


def models_of(fleet: Fleet) -> dict[ServedModel, Replica]:
    """Return the models whose prompts are weighed, each with a replica of its own service."""
    known = fleet.prefixes.known
    models: dict[ServedModel, Replica] = {}
    for service in fleet.routes.services:
        revisions = {
            known[replica.id].naming.model_revision: replica
            for replica in fleet.routes.of(service)
            if replica.id in known
        }
        # A prompt is read for so many; replicas that claim more must not fill the memory with tokenizers.
        models |= {ServedModel(service, each): replica for each, replica in islice(revisions.items(), MOST_NAMINGS)}
    return models


@contextlib.asynccontextmanager
async def _served(
    app: web.Application, listening: socket.socket, *, idle_seconds: float
) -> AsyncIterator[web.SockSite]:
    """Serve ``app`` until the end of the block; `SockSite.stop` closes the port before that."""
    runner = Runner(
        app,
        access_log=None,
        handler_cancellation=True,  # a client that leaves ends its request
        auto_decompress=False,  # what is sent on is what came in
        shutdown_timeout=_LAST_BYTES_SECONDS,
        keepalive_timeout=idle_seconds,  # bytes of a head that is not whole do not extend it
    )
    await runner.setup()
    site = web.SockSite(runner, listening)
    await site.start()
    try:
        yield site
    finally:
        await runner.cleanup()


async def _drain(traffic: Traffic, proxy: Proxy, seconds: float) -> None:
    _log.info("draining", extra={"deadline_seconds": seconds})
    try:
        async with asyncio.timeout(seconds):
            await traffic.drained()
    except TimeoutError:
        _log.warning("the time to drain is over: what still runs is ended")
        proxy.cut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_BYTES_SECONDS):
                await traffic.drained()
    _log.info("drained")
