"""Asks every replica for its load, again and again: what other gateways send there is seen in no other way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import aiohttp
import msgspec

from sapwood_contract.http import ADMIN_LOAD, EngineLoad
from sapwood_gateway.core.routes import Replica
from sapwood_gateway.shell.credentials import Shown
from sapwood_gateway.shell.upstream import read_at_most

_MAX_AT_ONCE = 32
"""Replicas asked at the same time, so that hundreds of them cost a steady trickle instead of a burst."""
_TIMEOUT_SECONDS = 5.0
_MAX_BYTES = 2**20
"""Of an answer; an engine's own has some hundred."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Nobody listens there."""


@dataclass(frozen=True, slots=True)
class Silent:
    """It took too long, or what it said is not what an engine says: nothing is known anew."""


Heard = EngineLoad | Unreachable | Silent


class LoadPoller:
    """Polls all of ``targets()`` and hands what each said to ``heard``."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        targets: Callable[[], Iterable[Replica]],
        heard: Callable[[Replica, Heard], None],
        shown: Shown,
        interval_seconds: float,
    ) -> None:
        self._session = session
        self._targets = targets
        self._heard = heard
        self._shown = shown
        self._interval_seconds = interval_seconds

    async def run(self) -> None:
        """Poll for ever; each round begins so long after the end of the one before."""
        while True:
            await self.poll()
            await asyncio.sleep(self._interval_seconds)

    async def poll(self) -> None:
        """Ask every replica once."""
        seats = asyncio.Semaphore(_MAX_AT_ONCE)

        async def ask(replica: Replica) -> None:
            async with seats:
                said = await self._ask(replica)
            self._heard(replica, said)

        async with asyncio.TaskGroup() as round_:
            for replica in self._targets():
                round_.create_task(ask(replica))

    async def _ask(self, replica: Replica) -> Heard:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        url = replica.admin_url + ADMIN_LOAD
        try:
            headers = self._shown(replica.id)
            async with self._session.get(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
                return msgspec.json.decode(await read_at_most(response, _MAX_BYTES), type=EngineLoad)
        except TimeoutError:
            return Silent()
        except (aiohttp.ClientConnectionError, OSError):
            return Unreachable()
        except Exception:  # what answers may be anybody's program: nothing that it says ends the round of the others
            return Silent()
