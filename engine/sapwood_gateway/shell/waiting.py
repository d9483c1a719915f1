"""Where requests wait for a replica: at the door of a service that lets them, while no replica can take one more.

It is looked at when something has changed that may let one in: a request has ended, a replica was heard of or has
answered, the routes are others. Invariants: a request waits only behind others, or where no replica can take it; who
leaves, however it leaves, has no place in the queue and none on a replica. Where the queue is full, whoever has less
than its share of it takes the place of whoever has most beyond. Whom all replicas have refused waits again where they
only leave: the last one of a service that goes to zero may have been about to end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count

from sapwood_contract.http import ServiceDemand
from sapwood_gateway.core.balance import NoReplica
from sapwood_gateway.core.block_names import Naming
from sapwood_gateway.core.demand import Demand
from sapwood_gateway.core.fair_queue import FairQueue, Nobody, Ticket
from sapwood_gateway.core.fleet import Fleet, Lease
from sapwood_gateway.core.prefix_affinity import Prompt
from sapwood_gateway.core.prices import price_of
from sapwood_gateway.core.routes import Service, ServiceKey
from sapwood_gateway.shell import openai
from sapwood_gateway.shell.call import Call
from sapwood_gateway.shell.metrics import GatewayMetrics

_EVENTS_SECONDS = 0.25
"""After an answer's end its prompt counts as on its way for so long: the engine tells of it over another connection,
which may be slower than this one."""


class _Displaced:
    """Another tenant's request has taken the place."""


@dataclass(frozen=True, slots=True)
class _Changed:
    """The service asks for other credentials by now."""


_Outcome = Lease | NoReplica | _Displaced | _Changed


@dataclass(frozen=True, slots=True)
class _Waiter:
    service: Service
    """As it was when the request came."""
    begin: Callable[[], Lease | NoReplica]
    admitted: asyncio.Future[_Outcome]


class Waiting:
    """Gives requests their place on a replica of ``fleet``, at once or later; for one event loop."""

    def __init__(self, fleet: Fleet, *, metrics: GatewayMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._clock = clock
        self._queues: dict[ServiceKey, FairQueue] = {}
        """Of services for which somebody waits."""
        self._waiters: dict[int, _Waiter] = {}
        self._again: set[asyncio.Future[None]] = set()
        """Of requests that wait again, beside the queues: they have had their turn. Set when anything has changed."""
        self._ids = count()
        self._looks_soon = False
        self._demand = Demand()
        self._routes = fleet.routes
        """As last seen by `_changed`."""
        self._demand.know(self._routes.services.keys(), now=clock())
        fleet.watch(self._changed)

    def census(self) -> dict[str, int]:
        """Return how many requests wait, for each service that lets them."""
        services = self._fleet.routes.services.items()
        found = {str(key): 0 for key, service in services if service.queue_max_requests}
        return found | {str(key): num for key in self._demand.services if (num := self._demand.num_waiting(key))}

    def demand(self) -> tuple[ServiceDemand, ...]:
        """Return what there is to do for each service, also for those without a replica."""
        now, by_name = self._clock(), self._fleet.num_own_by_name
        return tuple(self._demand.of(key, by_name(key), now=now) for key in self._demand.services)

    @contextmanager
    def counted(self, service: ServiceKey) -> Iterator[None]:
        """Count a request for ``service``, which may call `begin`, for as long as the block takes."""
        self._demand.arrived(service, now=self._clock())
        try:
            yield
        finally:
            self._demand.ended(service, now=self._clock())

    async def begin(self, call: Call, prompts: Mapping[Naming, Prompt]) -> tuple[Lease, float]:
        """Return the place of a request on a replica, once there is one, and how many seconds it has waited for it.

        Whoever gets the place gives it to `end`.
        Raises `TooMany` where too many wait already, and `Unavailable` where none may wait or the time is over.
        """
        service = call.service
        begin = partial(self._try, call, prompts)
        queue = self._queues.get(service.key)
        if queue is None:
            lease = begin()
            if isinstance(lease, Lease):
                return lease, 0.0
            if not service.queue_max_requests:
                self._metrics.unroutable()
                raise openai.no_replica(service.key, lease)
            queue = self._queues[service.key] = FairQueue()
        elif len(queue) >= service.queue_max_requests:
            self._make_room(call, queue)
        num_prompt_tokens = next((prompt.num_tokens for prompt in prompts.values()), None)
        price = price_of(len(call.body), num_prompt_tokens=num_prompt_tokens, max_answer_tokens=call.max_answer_tokens)
        since = self._clock()
        try:
            lease = await self._wait(call, queue, Ticket(next(self._ids), call.tenant.id, call.model, price), begin)
        finally:
            self._metrics.waited(waited_seconds := self._clock() - since)
        return lease, waited_seconds

    async def begin_again(
        self, call: Call, prompts: Mapping[Naming, Prompt], tried: Collection[str]
    ) -> Lease | NoReplica:
        """Return a place on a replica that is not in ``tried``, those that have refused the request.

        It waits for one where requests may, and all that there are leave or are not ready. Raises `Unavailable` where
        that takes as long as a request may wait.
        """
        service, since = call.service, self._clock()
        found = self._try(call, prompts, tried)
        if isinstance(found, Lease) or not self._may_wait_again(service.key, found):
            return found
        self._demand.waits(service.key)
        try:
            async with asyncio.timeout(service.queue_max_wait_seconds):
                while isinstance(found, NoReplica) and self._may_wait_again(service.key, found):
                    await self._change()
                    self._check_unchanged(service)
                    found = self._try(call, prompts, tried)
        except TimeoutError:
            self._turned_away()
            raise openai.queue_timeout(service.key, service.queue_max_wait_seconds) from None
        finally:
            self._demand.waits_no_longer(service.key)
            self._metrics.waited(self._clock() - since)
        return found

    def end(self, lease: Lease) -> None:
        """Give a request's place back, however the request went."""
        self._fleet.end(lease, now=self._clock())
        if lease.placed is not None:
            asyncio.get_running_loop().call_later(_EVENTS_SECONDS, self._fleet.prefixes.computed, lease.placed)

    def _try(self, call: Call, prompts: Mapping[Naming, Prompt], tried: Collection[str] = ()) -> Lease | NoReplica:
        found = self._fleet.begin(call.service.key, call.model, tried=tried, now=self._clock(), prompts=prompts)
        if isinstance(found, Lease) and not tried:  # a second choice is none that the prefix made
            self._demand.routed(call.service.key, by_prefix=found.is_by_prefix)
        return found

    def _make_room(self, call: Call, queue: FairQueue) -> None:
        """Turn out whoever is most over its share; raises `TooMany` where that is the one that has come."""
        displaced = queue.displaced_by(call.tenant.id, share=call.tenant.share)
        if isinstance(displaced, Nobody):
            self._turned_away()
            raise openai.queue_full(call.service.key)
        queue.leave(displaced.id)
        admitted = self._waiters[displaced.id].admitted
        if not admitted.done():  # else its client has left, and it has not been told yet
            admitted.set_result(_Displaced())

    async def _wait(
        self, call: Call, queue: FairQueue, ticket: Ticket, begin: Callable[[], Lease | NoReplica]
    ) -> Lease:
        key = call.service.key
        waiter = _Waiter(call.service, begin, asyncio.get_running_loop().create_future())
        self._waiters[ticket.id] = waiter
        self._demand.waits(key)
        queue.join(ticket, share=call.tenant.share)
        self._look(key)  # those before it may wait for replicas of another model
        try:
            async with asyncio.timeout(call.service.queue_max_wait_seconds):
                outcome = await waiter.admitted
        except BaseException as error:
            if waiter.admitted.done() and not waiter.admitted.cancelled():
                came = waiter.admitted.result()  # in the moment in which the request left
                if isinstance(came, Lease):
                    self.end(came)
            if isinstance(error, TimeoutError):
                self._turned_away()
                raise openai.queue_timeout(key, call.service.queue_max_wait_seconds) from None
            raise
        finally:
            del self._waiters[ticket.id]
            self._demand.waits_no_longer(key)
            queue.leave(ticket.id)
            if not len(queue) and self._queues.get(key) is queue:
                del self._queues[key]
        match outcome:
            case Lease():
                return outcome
            case NoReplica():
                self._metrics.unroutable()
                raise openai.no_replica(key, outcome)
            case _Changed():
                raise openai.service_changed(key)
            case _Displaced():
                self._turned_away()
                raise openai.queue_full(key)

    def _turned_away(self) -> None:
        self._metrics.unroutable()
        self._metrics.rejected("overload")

    def _changed(self) -> None:
        if self._fleet.routes is not self._routes:
            self._routes = self._fleet.routes
            self._demand.know(self._routes.services.keys(), now=self._clock())
        if (self._queues or self._again) and not self._looks_soon:
            self._looks_soon = True
            asyncio.get_running_loop().call_soon(self._look_at_all)

    def _look_at_all(self) -> None:
        self._looks_soon = False
        for each in self._again:
            if not each.done():  # else its client has left, and it has not been told yet
                each.set_result(None)
        self._again.clear()
        for key in tuple(self._queues):
            self._look(key)

    def _may_wait_again(self, key: ServiceKey, refused: NoReplica) -> bool:
        service = self._fleet.routes.services.get(key)
        return service is not None and service.queue_max_requests > 0 and refused.until_another_comes

    def _check_unchanged(self, service: Service) -> None:
        present = self._fleet.routes.services.get(service.key, service)
        if present.authentication != service.authentication:
            raise openai.service_changed(service.key)

    async def _change(self) -> None:
        """Return when something has changed that may let a request in."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._again.add(changed)
        try:
            await changed
        finally:
            self._again.discard(changed)

    def _look(self, key: ServiceKey) -> None:
        """Let in whom the replicas of one service can take, and all where nobody may wait any longer."""
        queue = self._queues[key]
        service = self._fleet.routes.services.get(key)
        may_wait = service is not None and service.queue_max_requests > 0
        while True:
            models = {m for m in queue.models if not may_wait or self._fleet.can_begin(key, m, now=self._clock())}
            ticket = queue.next(models)
            if isinstance(ticket, Nobody):
                return
            waiter = self._waiters[ticket.id]
            if waiter.admitted.done():  # its client has left, and it has not been told yet
                continue
            if service is not None and service.authentication != waiter.service.authentication:
                waiter.admitted.set_result(_Changed())
                continue
            lease = waiter.begin()
            assert isinstance(lease, Lease) or not may_wait, f"{key} can take {ticket.model} and does not: {lease}"
            waiter.admitted.set_result(lease)
