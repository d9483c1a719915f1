"""The operator from its start to its end: waits to lead, leads until told to stop, lets go."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from sapwood_operator.adapters.access import Access
from sapwood_operator.adapters.election import Terms
from sapwood_operator.adapters.health import Health, serve_health
from sapwood_operator.adapters.lease import ClusterLease, Leadership
from sapwood_operator.adapters.metrics import OperatorMetrics
from sapwood_operator.handlers.leader import Leader, WorkSettings
from sapwood_operator.settings import OperatorSettings

EXIT_STOPPED = 0
EXIT_FAILED = 1
"""Leadership was lost, or the health port could not be had."""
EXIT_SIGNAL = 128
"""Plus the signal's number: a second signal ended the program at once."""
_FINISH_SECONDS = 5.0
"""What turns under way get after a signal."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """How this process shows itself to others."""

    identity: str
    """Tells operators apart: in the Lease and on events."""
    lease_name: str = "sapwood-operator"
    lease_seconds: int = 15
    """How soon another takes over from an operator that died."""
    health_host: str = "0.0.0.0"
    health_port: int = 8080


async def run(
    access: Access, settings: OperatorSettings, work: WorkSettings, process: ProcessSettings, *, runbooks: str
) -> int:
    """Run until SIGTERM or SIGINT, or until leadership is lost; return the exit code. ``runbooks``: HTML to serve."""
    stop = asyncio.Event()
    _take_signals(stop)
    metrics, health = OperatorMetrics(), Health()
    try:
        async with serve_health(
            health, metrics, runbooks=runbooks, host=process.health_host, port=process.health_port
        ) as port:
            _log.info("health port open", extra={"port": port, "identity": process.identity})
            await _first_of(stop.wait(), _live(access, settings, work, process, metrics=metrics, health=health))
    except OSError as error:
        _log.error("the health port cannot be had", extra={"detail": str(error)})
        return EXIT_FAILED
    return EXIT_STOPPED if stop.is_set() else EXIT_FAILED


def _take_signals(stop: asyncio.Event) -> None:
    def take(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(EXIT_SIGNAL + number)
        _log.info("stopping", extra={"signal": number.name})
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, take, number)


async def _live(
    access: Access,
    settings: OperatorSettings,
    work: WorkSettings,
    process: ProcessSettings,
    *,
    metrics: OperatorMetrics,
    health: Health,
) -> None:
    """Wait to lead, and lead; return when leadership is lost."""
    lease = ClusterLease(
        access.client(connections=1),
        namespace=settings.operator_namespace,
        name=process.lease_name,
        request_timeout_seconds=work.request_timeout_seconds,
    )
    leadership = Leadership(lease, identity=process.identity, terms=Terms(process.lease_seconds))
    health.phase = "standby"
    await leadership.acquire()
    metrics.set_leader(leads=True)
    leader = Leader(access, settings, work, identity=process.identity, metrics=metrics, health=health)
    try:
        await _first_of(leadership.hold(), leader.run())
        _log.error("leadership lost")
        await leader.finish(within_seconds=0.0)
    except asyncio.CancelledError:
        await leader.finish(within_seconds=_FINISH_SECONDS)
        await leadership.release()
        raise
    finally:
        metrics.set_leader(leads=False)


async def _first_of(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Run all until one ends, then cancel the others and wait for them; an error of any is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
