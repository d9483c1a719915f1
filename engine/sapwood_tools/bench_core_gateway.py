"""What the gateway's choice of a replica costs a request, and that it is noted, beside the hashing of its prompt."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import quantiles
from time import perf_counter

from sapwood_contract.http import KvEvents
from sapwood_gateway.core.balance import NoReplica, Report
from sapwood_gateway.core.block_feed import Batch, Stored
from sapwood_gateway.core.block_names import CacheFacts, Naming, PromptSpace, prompt_of
from sapwood_gateway.core.circuit import CircuitSettings
from sapwood_gateway.core.fleet import Fleet, Lease
from sapwood_gateway.core.routes import Replica, Routes, Service, ServiceKey
from sapwood_gateway.core.workload import WorkloadLog, block_names
from sapwood_tools.bench_figures import Figure, interleaved, measured

_SERVICE = ServiceKey("bench", "chat")
_MODEL = "bench/model"
_NAMING = Naming("revision", block_tokens=16)
_NUM_REPLICAS = 16
_PROMPT_TOKENS = 4_000
_SYSTEM_TOKENS = 512
"""That all prompts begin with, and all replicas hold."""
_HELD_SHARES = (0.0, 0.5, 0.9, 1.0)
"""Of a prompt beyond those, by one replica: a new conversation, two that went on, the same prompt again."""
_UNDER_WAY = 64
"""Prompts that were sent and are not computed yet."""
_NOTED_TOGETHER = 200
"""Requests: one takes no longer than to look at the clock."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A prompt of the benchmark, and how much of it one replica is told to hold."""

    token_ids: list[int]
    held_tokens: int


def route_decision(*, num_decisions: int = 4_000, capacity_blocks: int = 50_000) -> Iterable[Figure]:
    """A request is given to one of 16 replicas with full indexes, and noted there, beyond tokens and hashes; baseline:
    the hashing of its prompt.

    Two figures: the median, and what 99 of 100 stay below. ``capacity_blocks``: of each replica, all of them taken.
    """
    draw = Random(3)
    asked = list(_prompts(draw, num_decisions))
    fleet = _full_fleet(draw, asked, capacity_blocks)
    under_way: deque[Lease] = deque()
    hashing, deciding = [], []
    for number, each in enumerate(asked):
        start = perf_counter()
        prompt = prompt_of(each.token_ids, _NAMING, PromptSpace(), f"session {number % 1_000}")
        hashed = perf_counter()
        lease = fleet.begin(_SERVICE, _MODEL, tried=(), now=start, prompts={_NAMING: prompt})
        done = perf_counter()
        hashing.append(hashed - start)
        deciding.append(done - hashed)
        assert not isinstance(lease, NoReplica)
        under_way.append(lease)
        if len(under_way) > _UNDER_WAY:
            _ended(fleet, under_way.popleft())
    for name, cut in (("p50", 50), ("p99", 99)):
        value, baseline = (1e6 * quantiles(seconds, n=100)[cut - 1] for seconds in (deciding, hashing))
        yield measured(f"route_decision_16_replicas_4000_tokens_{name}", "us", value, baseline)


def request_noted(*, repetitions: int = 500) -> Iterable[Figure]:
    """A request that has ended enters the last hour of its service, beyond the hashes of its prompt; baseline: the
    hashing of its prompt.
    """
    token_ids = Random(3).choices(range(32_000), k=_PROMPT_TOKENS)
    prompt = prompt_of(token_ids, _NAMING, PromptSpace(), None)
    log = WorkloadLog(since=0.0)

    def note() -> None:
        for _ in range(_NOTED_TOGETHER):
            names = block_names(prompt, _NAMING.block_tokens)
            log.note(_SERVICE, arrived_at=0.0, num_prompt_tokens=_PROMPT_TOKENS, num_answer_tokens=100, names=names)

    def hash_it() -> None:
        prompt_of(token_ids, _NAMING, PromptSpace(), None)

    seconds, baseline = interleaved(note, hash_it, repetitions=repetitions)
    yield measured("request_noted_4000_tokens", "us", 1e6 * seconds / _NOTED_TOGETHER, 1e6 * baseline)


def _prompts(draw: Random, count: int) -> Iterator[_Asked]:
    system = draw.choices(range(32_000), k=_SYSTEM_TOKENS)
    for number in range(count):
        own = draw.choices(range(32_000), k=_PROMPT_TOKENS - _SYSTEM_TOKENS)
        held = _SYSTEM_TOKENS + int(_HELD_SHARES[number % len(_HELD_SHARES)] * len(own))
        yield _Asked([*system, *own], held)


def _full_fleet(draw: Random, asked: Sequence[_Asked], capacity_blocks: int) -> Fleet:
    """Return a fleet whose replicas have told of as many blocks as they can hold, those of ``asked`` last."""
    fleet = Fleet(circuit=CircuitSettings())
    replicas = tuple(Replica(f"pod-{n:02}", f"pod-{n:02}", f"http://{n}", f"http://{n}") for n in range(_NUM_REPLICAS))
    fleet.update(Routes({_SERVICE: Service(_SERVICE, (_MODEL,), "PrefixAffinity")}, {_SERVICE: replicas}))
    for number, replica in enumerate(replicas):
        events = KvEvents(f"epoch {number}", "", 1, 2, page_size=_NAMING.block_tokens)
        facts = CacheFacts(_NAMING, capacity_blocks, events)
        fleet.reported(replica.id, Report("ready", draw.randrange(8), draw.randrange(4_000), 0, _MODEL, facts))
        feed = fleet.prefixes.feed(replica.id)
        assert feed is not None
        filling = Stored(tuple(draw.randbytes(16) for _ in range(capacity_blocks)))
        held = [Stored(_blocks(each)) for each in asked[number::_NUM_REPLICAS]]
        assert feed.apply(Batch(events.epoch, 0, [filling, *held])) == "applied"
    return fleet


def _blocks(asked: _Asked) -> tuple[bytes, ...]:
    return tuple(prompt_of(array("i", asked.token_ids[: asked.held_tokens]), _NAMING, PromptSpace(), None).chain)


def _ended(fleet: Fleet, lease: Lease) -> None:
    fleet.end(lease, now=0.0)
    assert lease.placed is not None
    fleet.prefixes.computed(lease.placed)
