"""Holds callers to their quotas: charges a request before it is sent, and settles once it is known what it has used.

Where nobody can count, the policy that was configured decides, and a question a second finds out whether that is over.
A request that no engine has worked on has cost nothing; who leaves before the answer begins has used what it asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from aiohttp import web

from sapwood_gateway.core import circuit as circuits
from sapwood_gateway.core.circuit import Circuit, CircuitSettings, Closed
from sapwood_gateway.core.prices import price_of
from sapwood_gateway.core.quotas import (
    Add,
    Exceeded,
    Kind,
    SeatsTaken,
    WhenUnknown,
    Window,
    exceeded,
    give_back,
    seats_key,
    settle,
    tightest,
    windows,
)
from sapwood_gateway.core.tenants import Quotas
from sapwood_gateway.shell import openai
from sapwood_gateway.shell.call import Call
from sapwood_gateway.shell.metrics import GatewayMetrics
from sapwood_gateway.shell.quota_store import RENEWAL_SECONDS, QuotaStore, StoreFailed
from sapwood_gateway.shell.usage import Meter

_log = logging.getLogger(__name__)

RATE_HEADERS_KEY = web.RequestKey("rate_headers", Mapping[str, str])
"""What the answer to a request tells of its caller's limits."""
_NO_QUOTAS = Quotas()
_CIRCUIT = CircuitSettings(failures_to_open=1, rest_seconds=1.0, longest_rest_seconds=1.0)
_T = TypeVar("_T")


class _Unknown:
    """No answer of the store."""


class _Charges:
    """What one request has been charged."""

    def __init__(self, call: Call) -> None:
        self.seats_key = seats_key(call.tenant)
        self.seat = ""
        """Empty: none is held."""
        self.counted: list[tuple[Window, int]] = []
        """Windows with what was counted in each."""

    @property
    def windows(self) -> list[Window]:
        return [window for window, _ in self.counted]


class Limiter:
    """Quotas of all tenants; for one event loop."""

    def __init__(
        self,
        store: QuotaStore,
        *,
        when_unknown: WhenUnknown,
        metrics: GatewayMetrics,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._when_unknown = when_unknown
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._clock = clock
        self._circuit: Circuit = Closed()
        self._is_known_down = False
        self._settling: set[asyncio.Task[None]] = set()
        self._seats: dict[str, set[str]] = {}
        """Of requests under way, by their key: what is renewed, whatever the store was told."""

    async def run(self) -> None:
        """Keep the seats of requests under way, for ever; tells at the start whether the store answers."""
        while True:
            await self._ask(partial(self._store.renew, {key: tuple(seats) for key, seats in self._seats.items()}))
            await asyncio.sleep(RENEWAL_SECONDS)

    async def settled(self) -> None:
        """Return when all requests that have ended are settled."""
        while self._settling:
            await asyncio.wait(self._settling)

    @contextlib.asynccontextmanager
    async def charged(self, call: Call) -> AsyncIterator[Meter]:
        """Charge a request for the time of the block; the meter is told what becomes of it.

        Raises `TooMany` for one beyond its caller's quotas, and `Unavailable` where that cannot be known and must be.
        """
        price_tokens = _tokens_of(call)
        meter = Meter(prompt_estimate=price_of(len(call.body), max_answer_tokens=0), price=price_tokens)
        if call.tenant.quotas == _NO_QUOTAS:
            yield meter
            return
        charges = _Charges(call)
        try:
            await self._charge(call, charges, price_tokens)
            call.request[RATE_HEADERS_KEY] = _rate_headers(charges.counted, self._wall_clock())
            yield meter
        finally:
            self._settle(charges, meter)

    async def _charge(self, call: Call, charges: _Charges, price_tokens: int) -> None:
        limit = call.tenant.quotas.concurrent_requests
        if limit is not None:
            # Leaving one that was not entered does no harm: the answer may be lost where the question was heard.
            charges.seat = uuid.uuid4().hex
            is_in = await self._ask(partial(self._store.enter, charges.seats_key, limit=limit, seat=charges.seat))
            if isinstance(is_in, _Unknown):
                return self._let_in_unknown()
            if not is_in:
                self._refuse(SeatsTaken(limit))
            self._seats.setdefault(charges.seats_key, set()).add(charges.seat)
        now = self._wall_clock()
        for window in windows(call.tenant, price_tokens=price_tokens, now=now):
            count = await self._ask(partial(self._store.take, window.charge, limit=window.limit))
            if isinstance(count, _Unknown):
                return self._let_in_unknown()
            if (refused := exceeded(window, count, now=now)) is not None:
                counted = [*charges.counted, (window, count - window.cost)]
                call.request[RATE_HEADERS_KEY] = _rate_headers(counted, now)
                self._refuse(refused)
            charges.counted.append((window, count))
        return None

    def _refuse(self, refused: Exceeded | SeatsTaken) -> None:
        is_quota = isinstance(refused, Exceeded) and refused.period == "day"
        self._metrics.rejected("quota" if is_quota else "rate")
        raise openai.quota_refusal(refused)

    def _let_in_unknown(self) -> None:
        """Let a request in that cannot be counted, or raise `Unavailable`."""
        if self._when_unknown == "closed":
            self._metrics.rejected("quota")
            raise openai.quotas_unknown()

    def _settle(self, charges: _Charges, meter: Meter) -> None:
        """Settle beside the request: its client waits for nothing of it."""
        seats = self._seats.get(charges.seats_key, set())
        seats.discard(charges.seat)
        if not seats:
            self._seats.pop(charges.seats_key, None)
        changes: tuple[Add, ...] = ()
        if not meter.is_owed:
            changes = give_back(charges.windows)
        elif (used := meter.used_tokens()) is not None:
            changes = settle(charges.windows, used_tokens=used, now=self._wall_clock())

        async def settling() -> None:
            if charges.seat:
                await self._ask(partial(self._store.leave, charges.seats_key, seat=charges.seat))
            for change in changes:
                await self._ask(partial(self._store.add, change))

        task = asyncio.get_running_loop().create_task(settling())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _ask(self, question: Callable[[], Awaitable[_T]]) -> _T | _Unknown:
        """Ask the store, but while it rests from a failure; what is not answered is not asked again."""
        if not circuits.lets_through(self._circuit, self._clock()):
            return _Unknown()
        self._circuit = circuits.after_begin(self._circuit)
        try:
            answer = await question()
        except StoreFailed as error:
            self._metrics.quota_store_failed()
            self._circuit = circuits.after_failure(self._circuit, self._clock(), _CIRCUIT)
            if not self._is_known_down:
                self._is_known_down = True
                _log.warning(
                    "the quota store does not answer: requests with quotas are "
                    + ("refused" if self._when_unknown == "closed" else "let in without being counted"),
                    extra={"reason": str(error)},
                )
            return _Unknown()
        except BaseException:
            self._circuit = circuits.after_abandoned(self._circuit, self._clock())
            raise
        self._circuit = circuits.after_success(self._circuit)
        if self._is_known_down:
            self._is_known_down = False
            _log.warning("the quota store answers again")
        return answer


def _tokens_of(call: Call) -> int:
    """Return the price of a request; what no engine computes has none."""
    if not call.request.path.startswith("/v1/"):
        return 0
    return price_of(len(call.body), max_answer_tokens=call.max_answer_tokens)


def _rate_headers(counted: list[tuple[Window, int]], now: float) -> Mapping[str, str]:
    """Return OpenAI's headers, each about the limit that is met first."""
    headers = {}
    kinds: tuple[Kind, ...] = ("requests", "tokens")
    for kind in kinds:
        found = tightest(counted, kind)
        if found is not None:
            window, left = found
            headers[f"x-ratelimit-limit-{kind}"] = str(window.limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(left)
            headers[f"x-ratelimit-reset-{kind}"] = f"{window.seconds_left(now)}s"
    return headers
