"""From a client's request to its answer: an attempt a replica until one answers, then the answer as it comes.

Until the first byte of an answer nothing has been sent to the client, so another replica can still take over; after
it a stream that breaks off ends with an error event. A client that leaves takes its upstream connection along, by
which the engine knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import count

import aiohttp
from aiohttp import web
from structlog.contextvars import bound_contextvars

from sapwood_gateway.core import retry
from sapwood_gateway.core.balance import NoReplica
from sapwood_gateway.core.fleet import Fleet, Lease
from sapwood_gateway.core.retry import GiveUp, RetrySettings
from sapwood_gateway.core.routes import Replica
from sapwood_gateway.shell import headers, openai
from sapwood_gateway.shell.auth import Auth
from sapwood_gateway.shell.body import Bodies, BodyLimits
from sapwood_gateway.shell.call import REQUEST_ID_KEY, TRACE_KEY, Call, call_of
from sapwood_gateway.shell.limiter import Limiter
from sapwood_gateway.shell.metrics import AttemptFailure, GatewayMetrics
from sapwood_gateway.shell.prompts import Prompts, Read
from sapwood_gateway.shell.route_trace import RouteTrace, RouteTraces
from sapwood_gateway.shell.upstream import Answering, Failed, Refused, UpstreamEnded, next_piece, send
from sapwood_gateway.shell.usage import Meter
from sapwood_gateway.shell.waiting import Waiting
from sapwood_gateway.shell.workloads import Workloads

_log = logging.getLogger(__name__)

_FAILURES: dict[str, tuple[int, str, str]] = {
    "connect": (503, "cannot be reached", "replica_unreachable"),
    "broken": (502, "gave no answer that can be passed on", "upstream_failed"),
    "timeout": (504, "did not begin to answer in time", "upstream_timeout"),
}
"""Why the last attempt failed -> status, words, code."""
_DONE = b"data: [DONE]"
"""The last event of a stream that ended well."""
_Reply = tuple[web.StreamResponse, str]
"""The answer, and the code that it counts as: 499 where the client has gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """How long to wait, and how often to try."""

    first_byte_timeout_seconds: float | None
    """None: as long as it takes. A long prompt behind a long queue is no fault."""
    refusal_timeout_seconds: float = 5.0
    """How long a replica that refuses may take to say so; it is read whole while another one could be asked."""
    body: BodyLimits
    retry: RetrySettings


class Proxy:
    """Forwards requests to the replicas of a `Fleet`."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        *,
        auth: Auth,
        limiter: Limiter,
        prompts: Prompts,
        metrics: GatewayMetrics,
        settings: ProxySettings,
        draw: Callable[[], float],
        traces: RouteTraces,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``draw``: a number from [0, 1), for jitter."""
        self._traces = traces
        self._fleet = fleet
        self._session = session
        self._auth = auth
        self._limiter = limiter
        self._prompts = prompts
        self._metrics = metrics
        self._settings = settings
        self._draw = draw
        self._clock = clock
        self._bodies = Bodies(settings.body)
        self.waiting = Waiting(fleet, metrics=metrics, clock=clock)
        self.workloads = Workloads(clock=clock)
        self._is_cut = False
        self._limits: set[asyncio.Timeout] = set()
        """One for each request under way."""

    def cut(self) -> None:
        """End every request that is under way, and every later one, with an error that says why."""
        self._is_cut = True
        for limit in self._limits:
            limit.reschedule(asyncio.get_running_loop().time())

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request; raises `GatewayError` before the answer begins, never after."""
        begin = self._clock()
        trace = request[TRACE_KEY] = self._traces.begin(request, request[REQUEST_ID_KEY])
        with bound_contextvars(**trace.log_fields) if trace.log_fields else contextlib.nullcontext():
            return await self._handle(request, trace, begin)

    async def _handle(self, request: web.Request, trace: RouteTrace, begin: float) -> web.StreamResponse:
        service, model, code = "", "", "499"  # what is left where the handler is cancelled, because its client has gone
        try:
            caller = self._auth.caller(request, self._fleet.routes)
            async with self._until_cut(), self._bodies.held(request) as body:
                call = call_of(request, body, caller, self._auth)
                service, model = str(call.service.key), call.model
                async with self._limiter.charged(call) as meter:
                    with self.waiting.counted(call.service.key):
                        response, code = await self._forward(call, meter)
                return response
        except (openai.GatewayError, web.HTTPException) as error:
            code = str(error.status)
            raise
        except Exception:
            code = "500"
            raise
        finally:
            self._metrics.answered(service, model, code)
            trace.ended(service=service, model=model, code=code)
            _log.info(
                "request",
                extra={
                    "path": request.path,
                    "model": model,
                    "code": code,
                    "seconds": round(self._clock() - begin, 3),
                },
            )

    @contextlib.asynccontextmanager
    async def _until_cut(self) -> AsyncIterator[None]:
        """Cancel what is inside at `cut`; what does not give an answer of its own then is answered with an error."""
        try:
            async with asyncio.timeout(0 if self._is_cut else None) as limit:
                self._limits.add(limit)
                try:
                    yield
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            raise openai.gateway_stops() from None

    async def _forward(self, call: Call, meter: Meter) -> _Reply:
        begin = self._clock()
        read = await self._prompts.of(
            call, self._fleet.prefixes.namings(call.service.key), tenant=call.passport.cache_tenant
        )
        with self.workloads.noted(call, read, meter, arrived_at=begin):
            return await self._forward_read(call, read, meter, begin)

    async def _forward_read(self, call: Call, read: Read, meter: Meter, begin: float) -> _Reply:
        lease, waited_seconds = await self.waiting.begin(call, read.prompts)
        self._metrics.sent(lease.reason, self._clock() - begin - waited_seconds, exemplar=call.trace.exemplar)
        call.trace.placed(lease, waited_seconds=waited_seconds)
        if call.service.policy == "PrefixAffinity" and lease.placed is None:
            self._metrics.not_weighed(read.unread or "unnamed")
        tried: set[str] = set()
        delay_seconds = 0.0
        for num_attempts in count(1):
            tried.add(lease.replica.id)
            with self._held(lease):
                await asyncio.sleep(delay_seconds)
                outcome = await self._attempt(call, lease, meter)
            if isinstance(outcome, tuple):
                return outcome
            last = outcome
            step = retry.after(num_attempts, jitter=self._draw(), settings=self._settings.retry)
            if isinstance(step, GiveUp):
                break
            delay_seconds = step.delay_seconds
            another = await self.waiting.begin_again(call, read.prompts, tried)
            if isinstance(another, NoReplica):
                break
            lease = another
        return self._last_word(call, last)

    async def _attempt(self, call: Call, lease: Lease, meter: Meter) -> _Reply | Refused | Failed:
        """Send a request to one replica and pass its answer on; return why there is none to pass on, else."""
        with call.trace.attempt(lease.replica, call.request.path):
            sent_at = self._clock()
            meter.sent()
            outcome = await self._send(call, lease.replica)
            if isinstance(outcome, Answering):
                if lease.placed is not None and headers.is_event_stream(outcome.response.headers):
                    self._fleet.prefixes.began(lease.placed, self._clock() - sent_at)
                reply = await self._relay(call, lease, outcome, meter)
                call.trace.answered(outcome.response.status, reply[1])
                return reply
            if outcome != Failed("timeout"):
                meter.refused()
            self._failed(call, lease.replica, outcome)
            return outcome

    async def _send(self, call: Call, replica: Replica) -> Answering | Refused | Failed:
        return await send(
            self._session,
            call,
            replica,
            first_byte_seconds=self._settings.first_byte_timeout_seconds,
            refusal_seconds=self._settings.refusal_timeout_seconds,
        )

    async def _relay(self, call: Call, lease: Lease, answering: Answering, meter: Meter) -> _Reply:
        replica, upstream = lease.replica, answering.response
        is_stream = headers.is_event_stream(upstream.headers)
        response = web.StreamResponse(
            status=upstream.status,
            reason=upstream.reason,
            headers=headers.for_client(upstream.headers, is_stream=is_stream),
        )
        meter.begins(upstream.status, is_stream=is_stream)
        try:
            self._answered(replica, upstream.status)
            await response.prepare(call.request)
            piece = answering.first
            while piece:
                await response.write(piece)
                meter.passes(piece)
                piece = await next_piece(upstream)
            self._note_usage(call, lease, meter)
            await response.write_eof()
        except UpstreamEnded:
            self._fleet.failed(replica.id, now=self._clock())
            self._note_failure(call, replica, "cut")
            await _end_early(call, response, openai.CUT_SHORT if is_stream else None, meter.tail)
            return response, str(openai.CUT_SHORT.status)
        except asyncio.CancelledError:
            if not self._is_cut or not response.prepared:
                raise
            stops = openai.gateway_stops()
            await _end_early(call, response, stops if is_stream else None, meter.tail)
            return response, str(stops.status)
        except ConnectionResetError:
            return response, "499"
        finally:
            upstream.close()
        # An engine that fails after the first byte ends its stream with an error event instead.
        is_whole = not is_stream or _DONE in meter.tail
        return response, str(upstream.status if is_whole else 500)

    def _last_word(self, call: Call, last: Refused | Failed) -> _Reply:
        """No further attempt: the last replica's answer, or why there is none."""
        if isinstance(last, Refused):
            kept = headers.for_client(last.headers, is_stream=False)
            return web.Response(status=last.status, body=last.body, headers=kept), str(last.status)
        status, words, code = _FAILURES[last.reason]
        raise openai.Unavailable(
            status, f"The service {call.service.key} has no answer: the last replica asked {words}.", code=code
        )

    @contextlib.contextmanager
    def _held(self, lease: Lease) -> Iterator[None]:
        try:
            yield
        finally:
            self.waiting.end(lease)

    def _note_usage(self, call: Call, lease: Lease, meter: Meter) -> None:
        if lease.placed is not None and (usage := meter.usage()) is not None:
            self._fleet.prefixes.answered(lease.placed, usage.completion_tokens)
            if usage.cached_tokens is not None:
                self._metrics.matched(
                    call.model,
                    expected=lease.placed.decision.matched_tokens,
                    actual=usage.cached_tokens,
                    page_tokens=lease.placed.cohort.naming.block_tokens,
                )

    def _answered(self, replica: Replica, status: int) -> None:
        if retry.is_failure(status):
            self._fleet.failed(replica.id, now=self._clock())
        else:
            self._fleet.succeeded(replica.id)

    def _failed(self, call: Call, replica: Replica, outcome: Refused | Failed) -> None:
        if isinstance(outcome, Refused):
            self._answered(replica, outcome.status)
            self._note_failure(call, replica, "busy" if outcome.status == 429 else "unavailable")
            call.trace.answered(outcome.status, str(outcome.status))
        else:
            self._fleet.failed(replica.id, now=self._clock())
            self._note_failure(call, replica, outcome.reason)

    def _note_failure(self, call: Call, replica: Replica, reason: AttemptFailure) -> None:
        self._metrics.attempt_failed(reason)
        call.trace.attempt_failed(reason)
        _log.warning(
            "a replica did not answer" if reason != "cut" else "an answer broke off",
            extra={"service": str(call.service.key), "replica": replica.name, "reason": reason},
        )


async def _end_early(call: Call, response: web.StreamResponse, error: openai.GatewayError | None, tail: bytes) -> None:
    """Let the client see that its answer is not whole.

    A stream gets ``error`` as its last event; ``tail`` is the end of what it has got. Without an error the connection
    ends before the answer does.
    """
    if error is None:
        if call.request.transport is not None:
            call.request.transport.close()
        return
    gap = b"" if tail[-2:] in (b"", b"\n\n") else b"\n\n"  # it broke off inside an event
    with contextlib.suppress(ConnectionResetError):
        await response.write(gap + openai.error_event(error))
        await response.write_eof()
