"""When a worker counts as hung, and what becomes of it then."""

from __future__ import annotations

import asyncio
import signal

import pytest
from support_fake_worker import HUNG_MODEL
from support_service import DEADLINE_SECONDS, generation, options, process_engine

from sapwood_engine.errors import WorkerDied
from sapwood_engine.service.watchdog import Watchdog


def looks_until_hung(watchdog: Watchdog) -> int:
    """How many looks at a silent worker with work it takes from now on."""
    return next(count for count in range(1, 1000) if watchdog.is_hung(has_work=True))


def test_a_worker_is_hung_once_it_had_work_and_was_silent_for_the_whole_timeout() -> None:
    watchdog = Watchdog(10.0)
    seconds_after_the_first_look = (looks_until_hung(watchdog) - 1) * watchdog.look_seconds
    assert seconds_after_the_first_look == pytest.approx(10.0)


def test_a_word_begins_the_timeout_anew() -> None:
    watchdog = Watchdog(10.0)
    whole = looks_until_hung(Watchdog(10.0))
    for _ in range(5):
        assert not any(watchdog.is_hung(has_work=True) for _ in range(whole - 1))
        watchdog.heard()
    assert looks_until_hung(watchdog) == whole


def test_an_idle_worker_may_be_silent_for_ever_and_begins_anew_with_its_next_work() -> None:
    watchdog = Watchdog(10.0)
    whole = looks_until_hung(Watchdog(10.0))
    assert not any(watchdog.is_hung(has_work=True) for _ in range(whole - 1))
    assert not any(watchdog.is_hung(has_work=False) for _ in range(1000))
    assert looks_until_hung(watchdog) == whole


async def test_a_hung_worker_is_killed_and_its_streams_are_told() -> None:
    async with process_engine(options(model=HUNG_MODEL, step_timeout_seconds=0.1)) as engine:
        streams = [engine.client.generate(generation(f"{i}")) for i in range(2)]
        async with asyncio.timeout(DEADLINE_SECONDS):
            for stream in streams:
                with pytest.raises(WorkerDied):
                    await anext(stream)
            assert await engine.attending == -signal.SIGKILL
    assert engine.client.fatal_message is not None
    assert "ended no step for 0.1 seconds" in engine.client.fatal_message
