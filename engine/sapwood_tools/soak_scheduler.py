"""Random traffic through scheduler and prefix cache, with an executor that knows which KV every slot must
hold.

A slot's KV is stood for by a hash of everything it depends on: the namespace and all tokens up to its own.
The token sampled is a function of the last hash, so a request's output can be told in advance, and every
output is checked.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import get_args

from sapwood_contract.launch import EvictionPolicyName, SchedulerPolicy
from sapwood_engine.core.admission import Accepted, SchedulerConfig, max_output
from sapwood_engine.core.keys import KeyUnit
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import (
    Namespace,
    Request,
    RequestId,
    SamplingParams,
    StopRules,
    TokenOutput,
)
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.core.step import NO_TOKEN, PENDING_TOKEN, StepPlan, StepResult

_NAMESPACES = (Namespace("soak"), Namespace("soak", tenant_salt="a"))
_VOCAB_SIZE = 3
_STOP_TOKEN = 2
_NUM_REMEMBERED = 32


@dataclass(slots=True)
class _Seat:
    namespace: Namespace
    table: list[int]
    last_token: int = 0


class _Device:
    """KV as hashes; runs each step when it is collected."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self._page_size = page_size
        self._kv = array("q", [0]) * (num_pages * page_size)
        self._seats: dict[int, _Seat] = {}

    def run(self, plan: StepPlan, namespaces: list[Namespace]) -> StepResult:
        """Run one step; ``namespaces`` are those of the requests whose seats it opens."""
        size, kv = self._page_size, self._kv
        for opened, namespace in zip(plan.opened, namespaces, strict=True):
            self._seats[opened.seat] = _Seat(namespace, [])
        for update in plan.page_updates:
            self._seats[update.seat].table[update.first :] = update.pages
        for copy in plan.copies:
            source, target, num = copy.source * size, copy.target * size, copy.num_tokens
            kv[target : target + num] = kv[source : source + num]
        result = StepResult(plan.step_id, [], 0.0)
        cursor = 0
        for seat_id, start, length, samples in zip(plan.seats, plan.starts, plan.lengths, plan.samples, strict=True):
            seat = self._seats[seat_id]
            above = _root(seat.namespace)
            if start:
                above = kv[seat.table[(start - 1) // size] * size + (start - 1) % size]
            for position in range(start, start + length):
                token = plan.token_ids[cursor]
                cursor += 1
                above = hash((above, seat.last_token if token == PENDING_TOKEN else token))
                kv[seat.table[position // size] * size + position % size] = above
            if samples:
                seat.last_token = _next_token(above)
            result.token_ids.append(seat.last_token if samples else NO_TOKEN)
        return result


def _root(namespace: Namespace) -> int:
    """The hash above a first token: not that of a text, which differs from process to process."""
    return hash((_NAMESPACES.index(namespace),))


def _next_token(above: int) -> int:
    return (above >> 7) % _VOCAB_SIZE


class SchedulerSoak:
    """One scheduler with random settings, its device, and what every request must answer."""

    def __init__(self, random: Random) -> None:
        self._random = random
        policies: tuple[SchedulerPolicy, ...] = get_args(SchedulerPolicy)
        evictions: tuple[EvictionPolicyName, ...] = get_args(EvictionPolicyName)
        page_size = random.choice((1, 2, 4, 16))
        self._num_pages = random.choice((64, 128, 512)) // page_size
        self._config = SchedulerConfig(
            policy=random.choice(policies),
            chunk_tokens=random.choice((3, 8, 64)),
            itl_target_seconds=random.choice((0.001, 0.1, 10.0)),
            max_queued=random.choice((4, 32)),
            max_overtaken=random.choice((0, 2, 64)),
            min_shared_tokens=random.choice((1, 16)),
            headroom_tokens=random.choice((4, 32)),
        )
        self._capacity = Capacity(
            num_pages=self._num_pages,
            page_size=page_size,
            max_context_tokens=60,
            max_seats=random.choice((1, 4, 8)),
            max_step_tokens=random.choice((8, 64)),
            vocab_size=_VOCAB_SIZE,
        )
        self._eviction = random.choice(evictions)
        self._partial_pages = random.random() < 0.8
        units: tuple[KeyUnit, ...] = get_args(KeyUnit)
        self._key_unit = random.choice(units)
        self._cache = PrefixCache(
            num_pages=self._num_pages,
            page_size=page_size,
            policy=self._eviction,
            enabled=random.random() < 0.9,
            partial_pages=self._partial_pages,
            key_unit=self._key_unit,
        )
        self._scheduler = Scheduler(self._config, self._capacity, self._cache)
        self._namespaces: dict[str, Namespace] = {}
        self._device = _Device(self._num_pages, page_size)
        self._in_flight: deque[tuple[StepPlan, list[Namespace]]] = deque()
        self._left: dict[str, list[int]] = {}
        """Request -> the tokens that it must still bring, in reverse."""
        self._remembered: list[list[int]] = [[]]
        self._num_requests = 0
        self._now = 0.0

    def describe(self) -> str:
        return (
            f"{self._config} {self._capacity} eviction={self._eviction} partial_pages={self._partial_pages} "
            f"key_unit={self._key_unit}"
        )

    def step(self) -> None:
        random = self._random
        chance = random.random()
        if chance < 0.2:
            self._submit()
        elif chance < 0.23 and self._left:
            self._abort(random.choice(list(self._left)))
        elif chance < 0.24:
            self._cache.flush(random.choice((None, *_NAMESPACES)))
        elif self._in_flight and (len(self._in_flight) == 2 or chance < 0.6):
            self._settle(fails=chance < 0.25)
        else:
            self._plan()
        load = self._scheduler.load()
        states = load.kv_active_tokens + load.kv_protected_tokens + load.kv_evictable_tokens + load.kv_free_tokens
        _ensure(states == load.kv_capacity_tokens, f"the states of the KV do not add up: {load}")

    def check(self) -> list[str]:
        return self._scheduler.check_invariants()

    def finish(self) -> list[str]:
        for _ in range(10_000):
            if self._in_flight:
                self._settle(fails=False)
            elif self._scheduler.has_work():
                self._plan()
            else:
                break
        _ensure(not self._left, f"{len(self._left)} requests never ended")
        load = self._scheduler.load()
        faults = self.check()
        if load.kv_active_tokens or load.kv_protected_tokens or load.num_running or load.num_waiting:
            faults.append(f"not everything came back: {load}")
        return faults

    def _submit(self) -> None:
        random = self._random
        name = RequestId(str(self._num_requests))
        self._num_requests += 1
        base = random.choice(self._remembered)
        prompt = [
            *base[: random.randint(0, len(base))],
            *random.choices(range(_VOCAB_SIZE), k=random.randint(1, 12)),
        ]
        request = Request(
            name,
            random.choice(_NAMESPACES),
            tuple(prompt[-40:]),
            SamplingParams(seed=0, temperature=0.0),
            StopRules(random.randint(1, 24), 0, frozenset({_STOP_TOKEN} if random.random() < 0.5 else ())),
            priority=random.randrange(3),
            routing_key=random.choice(("a", "b", None)),
            cache_pin_seconds=random.choice((0.0, 0.0, 3.0, 60.0)),
        )
        outcome = self._scheduler.submit(request, self._now)
        if not isinstance(outcome, Accepted):
            return
        if outcome.displaced is not None:
            del self._left[outcome.displaced], self._namespaces[outcome.displaced]
        self._namespaces[name] = request.namespace
        answer = self._answer(request)
        self._left[name] = answer[::-1]
        self._remembered.append([*request.prompt_ids, *answer])
        if len(self._remembered) > _NUM_REMEMBERED:
            del self._remembered[random.randrange(_NUM_REMEMBERED)]

    def _answer(self, request: Request) -> list[int]:
        limit = max_output(request, self._capacity)
        assert isinstance(limit, int)
        above = _root(request.namespace)
        for token in request.prompt_ids:
            above = hash((above, token))
        answer: list[int] = []
        while len(answer) < limit:
            token = _next_token(above)
            answer.append(token)
            if token in request.stop.stop_token_ids:
                break
            above = hash((above, token))
        return answer

    def _plan(self) -> None:
        self._now += 0.25
        plan = self._scheduler.plan(self._now)
        if plan is None:
            _ensure(bool(self._in_flight) or not self._scheduler.has_work(), "work, and nothing planned")
            return
        names = [self._scheduler.request_in(opened.seat) for opened in plan.opened]
        self._in_flight.append((plan, [self._namespaces[name] for name in names]))

    def _settle(self, *, fails: bool) -> None:
        plan, namespaces = self._in_flight.popleft()
        result = self._device.run(plan, namespaces)
        result.seconds = self._random.choice((0.001, 0.001, 0.02)) * len(plan.token_ids)
        outputs = self._scheduler.fail(plan.step_id) if fails else self._scheduler.commit(result)
        for output in outputs:
            self._note(output)

    def _abort(self, name: str) -> None:
        output = self._scheduler.abort(RequestId(name))
        _ensure(output is not None, f"request {name} is unknown before its end")
        if output is not None:
            self._note(output)

    def _note(self, output: TokenOutput) -> None:
        left = self._left[output.request_id]
        for token in output.token_ids:
            _ensure(bool(left) and left.pop() == token, f"request {output.request_id} got token {token}")
        if output.finish is not None:
            complete = output.finish in ("abort", "error") or not left
            _ensure(complete, f"request {output.request_id} ended with {output.finish}, {len(left)} tokens early")
            del self._left[output.request_id], self._namespaces[output.request_id]


def _ensure(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)
