"""The worker process from its first line to its last: build the executor, then the core that fits it, then
serve.

Capacity is known only once the weights are loaded, so the core is built last. Whatever goes wrong is said
in one `Fatal` message before the process ends, so that the person who started it reads a sentence, not a
stack.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sapwood_engine.config import EngineConfig
from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.ports import Capacity, Executor
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.errors import ConfigError, SapwoodError
from sapwood_engine.service.engine_loop import EngineLoop
from sapwood_engine.service.exit_codes import EXIT_DRAINED, EXIT_FAILED, EXIT_USAGE
from sapwood_engine.service.ipc import WorkerChannel
from sapwood_engine.service.kv_events import BlockPublisher
from sapwood_engine.service.messages import Fatal, Progress, Ready
from sapwood_engine.service.worker_process import watch_parent


class Report(Protocol):
    """Tells a person how the start goes on."""

    def __call__(self, phase: str, detail: str, fraction: float | None = None) -> None:
        """``phase``: one of `sapwood_contract.metrics.STARTUP_PHASES`; ``fraction``: how much of it is
        done.
        """


@dataclass(frozen=True, slots=True)
class BuiltExecutor:
    """What a start has made."""

    executor: Executor
    facts: dict[str, str]
    """Lines of the ready card."""
    startup_seconds: dict[str, float]
    """Phase -> how long it took."""
    model_name: str
    """The checkpoint's own."""


def run_worker(config: EngineConfig, channel: WorkerChannel, build: Callable[[Report], BuiltExecutor]) -> int:
    """Build, serve until told to stop, and return the process's exit code."""

    def end_at_once() -> None:
        # Nobody reads the answers any more, and a step may take long.
        shutil.rmtree(channel.addresses.directory, ignore_errors=True)
        os._exit(EXIT_FAILED)

    watch_parent(end_at_once)

    def report(phase: str, detail: str, fraction: float | None = None) -> None:
        channel.send(Progress(phase, detail, fraction))

    try:
        built = build(report)
        try:
            _serve(config, channel, built)
        finally:
            built.executor.close()
    except SapwoodError as error:
        channel.send(Fatal(str(error)))
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    except Exception as error:
        logging.getLogger(__name__).exception("the worker ends")
        channel.send(Fatal(f"the worker met a fault of its own: {type(error).__name__}: {error}"))
        return EXIT_FAILED
    finally:
        channel.close()
    return EXIT_DRAINED


def _serve(config: EngineConfig, channel: WorkerChannel, built: BuiltExecutor) -> None:
    cache, scheduler = build_core(config, built.executor.capacity)
    publisher = _publisher(config, built)
    loop = EngineLoop(
        scheduler=scheduler,
        cache=cache,
        executor=built.executor,
        channel=channel,
        overlap=config.scheduler.overlap,
        blocks=publisher,
    )
    # What a start makes stays to the end: a collection that walks it stops the steps for milliseconds, for
    # nothing.
    gc.freeze()
    address = publisher.address if publisher else None
    channel.send(Ready(built.executor.capacity, built.facts, built.startup_seconds, address))
    try:
        loop.run()
    finally:
        if publisher:
            publisher.close()


def _publisher(config: EngineConfig, built: BuiltExecutor) -> BlockPublisher | None:
    if config.cache.events_port is None:
        return None
    return BlockPublisher(
        config.http.admin_host,
        config.cache.events_port,
        topic=f"kv@{socket.gethostname()}@{config.model.served_name or built.model_name}",
        page_size=built.executor.capacity.page_size,
        token_ids=config.cache.events_token_ids,
    )


def build_core(config: EngineConfig, capacity: Capacity) -> tuple[PrefixCache, Scheduler]:
    """Return the prefix cache and the scheduler over it, for an executor of this capacity."""
    cache = PrefixCache(
        num_pages=capacity.num_pages,
        page_size=capacity.page_size,
        policy=config.cache.eviction_policy,
        enabled=config.cache.prefix_cache,
        partial_pages=config.cache.partial_pages,
        log_blocks=config.cache.events_port is not None,
        mrc_sample_rate=config.cache.mrc_sample_rate if config.cache.miss_ratio_curve else None,
    )
    settings = config.scheduler
    scheduler_config = SchedulerConfig(
        policy=settings.policy,
        max_running=settings.max_running,
        max_queued=settings.max_queued,
        max_step_tokens=settings.max_step_tokens,
        chunk_tokens=settings.chunk_tokens,
        itl_target_seconds=settings.itl_target_seconds,
        ttft_target_seconds=settings.ttft_target_seconds,
        seed=config.seed or 0,
    )
    return cache, Scheduler(scheduler_config, capacity, cache, clock=time.monotonic)
