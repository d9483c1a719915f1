"""Leadership in virtual time: taken, kept, lost in time, handed on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
from support_leases import CutOff, MemoryLease
from support_virtual_time import run_in_virtual_time

from sapwood_operator.adapters.election import Terms
from sapwood_operator.adapters.lease import Leadership, LeaseStore

TERMS = Terms(duration_seconds=15)
NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


def a_candidate(store: LeaseStore, identity: str) -> Leadership:
    return Leadership(store, identity=identity, terms=TERMS, now=lambda: NOON)


def clock() -> float:
    return asyncio.get_running_loop().time()


def play(script: Callable[[MemoryLease], Coroutine[Any, Any, None]]) -> MemoryLease:
    store = MemoryLease()
    run_in_virtual_time(script(store))
    return store


def test_the_first_candidate_leads_at_once_and_says_so_in_the_lease() -> None:
    async def script(store: MemoryLease) -> None:
        await a_candidate(store, "a").acquire()
        assert clock() == 0.0

    assert play(script).spec == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-02T12:00:00.000000Z",
        "renewTime": "2026-01-02T12:00:00.000000Z",
        "leaseTransitions": 1,
    }


def test_a_second_candidate_waits_for_as_long_as_the_first_renews() -> None:
    async def script(store: MemoryLease) -> None:
        first, second = a_candidate(store, "a"), a_candidate(store, "b")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600.0):
                await second.acquire()
        holding.cancel()

    store = play(script)
    assert store.spec is not None
    assert store.spec["holderIdentity"] == "a"


def test_a_dead_leader_is_followed_once_its_lease_has_run_out() -> None:
    async def script(store: MemoryLease) -> None:
        await a_candidate(store, "a").acquire()
        await a_candidate(store, "b").acquire()
        assert TERMS.duration_seconds <= clock() <= TERMS.duration_seconds + TERMS.retry_seconds

    assert play(script).spec is not None


def test_a_lease_that_is_released_is_taken_at_the_next_try() -> None:
    async def script(store: MemoryLease) -> None:
        first, second = a_candidate(store, "a"), a_candidate(store, "b")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(1.0)
        await first.release()
        await waiting
        assert clock() <= 1.0 + TERMS.retry_seconds

    store = play(script)
    assert store.spec is not None
    assert store.spec["holderIdentity"] == "b"
    assert store.spec["leaseTransitions"] == 2


def test_a_leader_that_is_cut_off_gives_up_before_another_takes_over() -> None:
    async def script(store: MemoryLease) -> None:
        line = CutOff(store)
        first, second = a_candidate(line, "a"), a_candidate(store, "b")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        taking = asyncio.create_task(second.acquire())
        await asyncio.sleep(60.0)
        line.cut = True
        await holding
        gave_up = clock()
        assert not taking.done()
        await taking
        assert gave_up + 1.0 < clock()

    play(script)


def test_a_leader_outlives_a_short_cut() -> None:
    async def script(store: MemoryLease) -> None:
        line = CutOff(store)
        leader = a_candidate(line, "a")
        await leader.acquire()
        holding = asyncio.create_task(leader.hold())
        for _ in range(10):
            line.cut = True
            await asyncio.sleep(TERMS.renew_within_seconds - 2 * TERMS.retry_seconds)
            line.cut = False
            await asyncio.sleep(2 * TERMS.retry_seconds)
        assert not holding.done()
        holding.cancel()

    play(script)


def test_a_leader_whose_lease_was_taken_from_it_gives_up_at_the_next_look() -> None:
    async def script(store: MemoryLease) -> None:
        leader = a_candidate(store, "a")
        await leader.acquire()
        holding = asyncio.create_task(leader.hold())
        await asyncio.sleep(10.0)
        store.replace({"holderIdentity": "b", "leaseDurationSeconds": 15}, str(store.version))
        await holding
        assert clock() <= 10.0 + TERMS.retry_seconds

    play(script)


def test_releasing_leaves_a_lease_of_somebody_else_alone() -> None:
    async def script(store: MemoryLease) -> None:
        await a_candidate(store, "b").acquire()
        await a_candidate(store, "a").release()

    store = play(script)
    assert store.spec is not None
    assert store.spec["holderIdentity"] == "b"
