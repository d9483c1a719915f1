"""What gateways have to do, from each one's admin port."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
import msgspec

from sapwood_contract.http import GATEWAY_DEMAND, GatewayDemand
from sapwood_operator.adapters.asking import Unanswered, get
from sapwood_operator.autoscaling.demand import Gateway, GatewaysHeard, NoGateways, is_sane

_NOT_UNDERSTOOD = "answers with something that is not understood: is it a gateway of this version?"

_OWES = "has not answered yet"

Find = Callable[[], Awaitable[tuple[Gateway, ...] | NoGateways]]
"""Says which gateways there are."""


def _not_interested(_heard: GatewaysHeard) -> None:
    """Hear nothing before all have answered."""


class GatewayDemands:
    """Asks gateways. Belongs to one event loop."""

    def __init__(self, session: aiohttp.ClientSession, find: Find, *, clock: Callable[[], float] = time.time) -> None:
        """``clock``: Unix time."""
        self._session, self._find, self._clock = session, find, clock

    async def ask(self, so_far: Callable[[GatewaysHeard], None] = _not_interested) -> GatewaysHeard:
        """Return what each gateway says now.

        ``so_far``: told at every answer what has been said until then, where gateways that still owe theirs count as
        ones that do not answer.
        """
        found = await self._find()
        at = self._clock()
        if isinstance(found, NoGateways):
            return GatewaysHeard(at=at, nobody_asked=found.why)
        told: dict[str, GatewayDemand | str] = {gateway.name: _OWES for gateway in found}

        async def ask_one(gateway: Gateway) -> None:
            told[gateway.name] = await self._ask(gateway)
            so_far(_heard(at, told))

        await asyncio.gather(*map(ask_one, found))
        return _heard(at, told)

    async def _ask(self, gateway: Gateway) -> GatewayDemand | str:
        try:
            answer = msgspec.json.decode(await get(self._session, gateway.url + GATEWAY_DEMAND), type=GatewayDemand)
        except Unanswered as error:
            return str(error)
        except (msgspec.DecodeError, RecursionError):
            return _NOT_UNDERSTOOD
        return answer if is_sane(answer) else _NOT_UNDERSTOOD


def _heard(at: float, told: Mapping[str, GatewayDemand | str]) -> GatewaysHeard:
    return GatewaysHeard(
        at=at,
        answers={name: each for name, each in told.items() if isinstance(each, GatewayDemand)},
        problems={name: each for name, each in told.items() if isinstance(each, str)},
    )
