"""What gateways have to do, from each one's admin port."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec

from sapwood_contract.http import GATEWAY_DEMAND, GatewayDemand
from sapwood_operator.adapters.asking import Unanswered, get
from sapwood_operator.autoscaling.demand import Gateway, GatewaysHeard, NoGateways, is_sane

_NOT_UNDERSTOOD = "answers with something that is not understood: is it a gateway of this version?"

Find = Callable[[], Awaitable[tuple[Gateway, ...] | NoGateways]]
"""Says which gateways there are."""


class GatewayDemands:
    """Asks gateways. Belongs to one event loop."""

    def __init__(self, session: aiohttp.ClientSession, find: Find, *, clock: Callable[[], float] = time.time) -> None:
        """``clock``: Unix time."""
        self._session, self._find, self._clock = session, find, clock

    async def ask(self) -> GatewaysHeard:
        """Return what each gateway says now."""
        found = await self._find()
        at = self._clock()
        if isinstance(found, NoGateways):
            return GatewaysHeard(at=at, nobody_asked=found.why)
        told = await asyncio.gather(*map(self._ask, found))
        pairs = [(gateway.name, each) for gateway, each in zip(found, told, strict=True)]
        return GatewaysHeard(
            at=at,
            answers={name: each for name, each in pairs if isinstance(each, GatewayDemand)},
            problems={name: each for name, each in pairs if isinstance(each, str)},
        )

    async def _ask(self, gateway: Gateway) -> GatewayDemand | str:
        try:
            answer = msgspec.json.decode(await get(self._session, gateway.url + GATEWAY_DEMAND), type=GatewayDemand)
        except Unanswered as error:
            return str(error)
        except (msgspec.DecodeError, RecursionError):
            return _NOT_UNDERSTOOD
        return answer if is_sane(answer) else _NOT_UNDERSTOOD
