"""The life of the gateway: listening, discovering, serving, draining, ending.

A first SIGTERM or SIGINT, or the death of a background task, makes it not ready, closes the port and lets requests
under way finish for a while; those that are left then end with an error. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from sapwood_contract.http import EngineLoad
from sapwood_gateway.core.balance import Report
from sapwood_gateway.core.block_names import facts_of
from sapwood_gateway.core.circuit import CircuitSettings
from sapwood_gateway.core.fleet import Fleet
from sapwood_gateway.core.retry import RetrySettings
from sapwood_gateway.core.routes import Replica
from sapwood_gateway.shell.app import Traffic, build_admin_app, build_app
from sapwood_gateway.shell.body import BodyLimits
from sapwood_gateway.shell.discovery.cluster import ClusterDiscovery
from sapwood_gateway.shell.discovery.listed import ListedDiscovery, listed_replica
from sapwood_gateway.shell.discovery.reflector import Api
from sapwood_gateway.shell.ending import Ending
from sapwood_gateway.shell.kv_events import EventFollower, Publisher
from sapwood_gateway.shell.load import Heard, LoadPoller, Unreachable
from sapwood_gateway.shell.metrics import GatewayMetrics
from sapwood_gateway.shell.options import GatewayOptions
from sapwood_gateway.shell.prompts import Prompts
from sapwood_gateway.shell.proxy import Proxy, ProxySettings
from sapwood_gateway.shell.tokenizers import ReadsOneModel, Tokenizers
from sapwood_gateway.shell.upstream import new_session

_log = logging.getLogger(__name__)

_LAST_BYTES_SECONDS = 3.0
"""When the port closes, how long a client may take to read the end of its answer."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Two listening sockets."""

    api: socket.socket
    admin: socket.socket


async def run_gateway(
    options: GatewayOptions,
    ports: Ports,
    cluster: Api | None,
    build_reader: Callable[[bytes], ReadsOneModel] | None = None,
) -> int:
    """Serve until something makes it end; return the exit code.

    ``cluster``: None where engines are listed. ``build_reader``: as of `Tokenizers`.
    """
    ending = Ending()
    draw = random.SystemRandom()
    fleet = Fleet(circuit=CircuitSettings(), first_turn=draw.randrange(2**16))
    metrics = GatewayMetrics(
        census=lambda: fleet.census(time.monotonic()),
        num_running=lambda: fleet.num_own,
        num_blocks=lambda: fleet.prefixes.num_blocks,
    )
    traffic = Traffic()
    async with new_session(options.connect_timeout_seconds) as session:
        tokenizers = Tokenizers(session, build_reader)
        prompts = Prompts(tokenizers)
        proxy = Proxy(
            fleet,
            session,
            prompts=prompts,
            metrics=metrics,
            settings=_proxy_settings(options),
            draw=draw.random,
        )
        api = build_app(fleet, proxy, traffic=traffic)
        idle_seconds = options.idle_timeout_seconds
        async with _discovering(options, fleet, session, tokenizers, metrics, cluster, ending) as discovery:
            admin = build_admin_app(metrics, traffic=traffic, is_discovered=lambda: discovery.is_ready)
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
    tokenizers: Tokenizers,
    metrics: GatewayMetrics,
    cluster: Api | None,
    ending: Ending,
) -> AsyncIterator[ClusterDiscovery | ListedDiscovery]:
    """Keep the fleet's routes and reports up to date for so long."""
    discovery: ClusterDiscovery | ListedDiscovery
    if cluster is None:
        discovery = ListedDiscovery(
            fleet, [listed_replica(each.url, each.admin_url) for each in options.engines], policy=options.policy
        )
    else:
        discovery = ClusterDiscovery(
            fleet,
            cluster,
            namespaces=options.namespaces,
            gateway=options.service,
            failed=metrics.discovery_failed,
            died=ending.died,
            draw=random.SystemRandom().random,
        )
        discovery.start()

    follower = EventFollower(session, feed=fleet.prefixes.feed, gap=metrics.event_gap)

    def targets() -> list[Replica]:
        follower.follow(publishers_of(fleet))
        tokenizers.want(revisions_of(fleet))
        return discovery.replicas if isinstance(discovery, ListedDiscovery) else fleet.routes.all_replicas()

    def heard(replica: Replica, said: Heard) -> None:
        if isinstance(discovery, ListedDiscovery):
            discovery.heard(replica, said)
        if isinstance(said, EngineLoad):
            fleet.reported(replica.id, report_of(said, num_own=fleet.num_own_on(replica.id)))
        elif isinstance(said, Unreachable):
            fleet.unreachable(replica.id)

    poller = LoadPoller(session, targets=targets, heard=heard, interval_seconds=options.load_interval_seconds)
    polling = asyncio.create_task(poller.run(), name="load poller")
    ending.watch(polling)
    try:
        yield discovery
    finally:
        polling.cancel()
        if isinstance(discovery, ClusterDiscovery):
            discovery.stop()
        await asyncio.gather(polling, return_exceptions=True)
        await follower.close()
        await tokenizers.close()


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
    )


def publishers_of(fleet: Fleet) -> dict[str, Publisher]:
    """Return whose cache events are to be followed, and where."""
    admin_urls = _admin_urls(fleet)
    return {
        id_: Publisher(id_, admin_urls[id_], facts.events)
        for id_, facts in fleet.prefixes.known.items()
        if facts.events is not None
    }


def revisions_of(fleet: Fleet) -> dict[str, str]:
    """Return the models whose prompts are weighed: revision -> admin address of a replica that has it."""
    admin_urls = _admin_urls(fleet)
    return {facts.naming.model_revision: admin_urls[id_] for id_, facts in fleet.prefixes.known.items()}


def _admin_urls(fleet: Fleet) -> dict[str, str]:
    return {replica.id: replica.admin_url for replica in fleet.routes.all_replicas()}


@contextlib.asynccontextmanager
async def _served(
    app: web.Application, listening: socket.socket, *, idle_seconds: float
) -> AsyncIterator[web.SockSite]:
    """Serve ``app`` until the end of the block; `SockSite.stop` closes the port before that."""
    runner = web.AppRunner(
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
