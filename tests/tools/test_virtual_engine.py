"""The virtual engine beside the scheduler itself, driven step after step in virtual time, and what it tells."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from support_exact_engine import exact_timeline

from sapwood_tools.replay.engine import CacheTooSmall
from sapwood_tools.replay.latency import EngineLimits, LatencyModel, RequestSeconds, StepSeconds
from sapwood_tools.replay.one_engine import answers, paced
from sapwood_tools.replay.trace import BLOCK_TOKENS, TraceRequest, request
from sapwood_tools.replay.virtual_engine import Ended, FirstToken, StepEngine

PROCESSOR = LatencyModel(
    steps=StepSeconds(prefill_token=0.65e-3, prefill_key=2e-7, decode=0.75e-3, decode_key=2e-6, base=8e-3),
    requests=RequestSeconds(request=0.0, request_token=0.0),
    limits=EngineLimits(kv_tokens=200_000),
)
"""About what a small model takes on two cores."""
ROUND = LatencyModel(
    steps=StepSeconds(prefill_token=1e-3, prefill_key=0.0, decode=1e-3, decode_key=0.0, base=9e-3),
    requests=RequestSeconds(request=0.0, request_token=0.0),
    limits=EngineLimits(kv_tokens=64 * BLOCK_TOKENS),
)
"""A chunk of 512 takes 521 ms, a decode alone 10 ms."""


def conversations(seed: int, *, num_requests: int, rate: float) -> list[TraceRequest]:
    """Half of the prompts go on from an earlier one; at random times, ``rate`` a second."""
    random = Random(seed)
    ids = iter(range(1, 1_000_000))
    history: list[list[int]] = []
    requests, now = [], 0.0
    for _ in range(num_requests):
        now += random.expovariate(rate)
        blocks = [*random.choice(history)[:-1]] if history and random.random() < 0.5 else [0]
        blocks += [next(ids) for _ in range(random.randint(1, 40) if random.random() < 0.8 else 1)]
        history = [*history[-50:], blocks]
        tokens = len(blocks) * BLOCK_TOKENS - random.randrange(BLOCK_TOKENS)
        requests.append(request(now, tokens, random.randint(1, 600), tuple(blocks)))
    return requests


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


# --- beside the scheduler


@pytest.mark.parametrize(
    ("rate", "shrink", "limits"),
    [
        (1.0, 16, {}),  # busy for three fifths of the time
        (1.6, 16, {}),  # all the time
        (2.5, 16, {}),  # more than there is time for: the line grows to the end
        (2.0, 32, {"kv_tokens": 8_192}),  # what was cached is gone again
        (2.0, 32, {"itl_target_seconds": 0.03}),  # decodes are over the target: prefills get the least share
        (2.0, 32, {"max_running": 4, "chunk_tokens": 128}),
    ],
)
def test_times_to_first_tokens_and_between_tokens_are_the_schedulers(
    rate: float, shrink: int, limits: dict[str, Any]
) -> None:
    model = replace(PROCESSOR, limits=replace(PROCESSOR.limits, **limits))
    requests = conversations(3, num_requests=300, rate=rate)
    exact, told = exact_timeline(model, requests, shrink=shrink), answers(model, requests, shrink=shrink)
    first = [exact.first_at[number] - each.arrival_seconds for number, each in enumerate(requests)]
    whole = [exact.ended_at[number] - each.arrival_seconds for number, each in enumerate(requests)]
    told_first = told.ttft_seconds(requests)
    told_whole = [told.ended_at[number] - each.arrival_seconds for number, each in enumerate(requests)]
    assert sum(told_first) == pytest.approx(sum(first), rel=0.03)
    assert sum(told_whole) == pytest.approx(sum(whole), rel=0.03)
    # Two that come at nearly one time may be told in the other order, which moves a quantile further than the sum.
    for share in (0.5, 0.9):
        assert quantile(told_first, share) == pytest.approx(quantile(first, share), rel=0.1)
        assert quantile(told_whole, share) == pytest.approx(quantile(whole, share), rel=0.1)
    assert sum(gap.number for gap in told.gaps) == len(exact.gaps)
    assert sum(gap.number * gap.seconds for gap in told.gaps) == pytest.approx(sum(exact.gaps), rel=0.05)
    assert sum(told.cached_tokens.values()) == pytest.approx(shrink * sum(exact.cached_tokens.values()), rel=0.03)


def test_requests_that_never_meet_take_to_the_token_what_they_take_the_scheduler() -> None:
    requests = conversations(4, num_requests=40, rate=0.01)
    exact, told = exact_timeline(PROCESSOR, requests, shrink=16), answers(PROCESSOR, requests, shrink=16)
    for number, each in enumerate(requests):
        assert told.first_at[number] - each.arrival_seconds == pytest.approx(
            exact.first_at[number] - each.arrival_seconds, rel=1e-6
        )
        assert told.ended_at[number] == pytest.approx(exact.ended_at[number], abs=1e-6)
        assert told.cached_tokens[number] == pytest.approx(16 * exact.cached_tokens[number], abs=16)


# --- what it tells


def test_a_request_alone_takes_its_steps_and_what_it_takes_besides() -> None:
    model = replace(ROUND, requests=RequestSeconds(request=0.005, request_token=1e-6))
    engine = StepEngine(model)
    engine.offer(7, request(2.0, 1_024, 3, (1, 2)), 2.0)
    assert engine.next_event_at() == pytest.approx(2.0 + 2 * 0.521)
    first, ended = engine.advance(10.0)
    assert isinstance(first, FirstToken)
    assert isinstance(ended, Ended)
    assert first == pytest.approx((7, 2.0 + 2 * 0.521 + 0.005 + 0.001024, 0))
    assert ended == pytest.approx((7, first.at + 2 * 0.010))
    assert engine.next_event_at() == math.inf
    (gap,) = engine.take_gaps()
    assert gap == pytest.approx((0.010, 2))
    assert engine.busy_seconds == pytest.approx(2 * 0.521 + 2 * 0.010)


def test_who_comes_while_a_step_computes_is_not_in_the_next_one_either() -> None:
    engine = StepEngine(ROUND)
    engine.offer(0, request(0.0, 1_536, 1, (1, 2, 3)), 0.0)
    engine.advance(0.1)
    engine.offer(1, request(0.1, 512, 1, (9,)), 0.1)
    events = engine.advance(60.0)
    # The second of the three chunks was planned already; the third one shares its step with the newcomer's.
    assert {event.request_id: event.at for event in events if isinstance(event, FirstToken)} == pytest.approx(
        {0: 2 * 0.521 + 1.033, 1: 2 * 0.521 + 1.033}
    )


def test_who_begins_like_a_prompt_that_is_computed_waits_for_that_beginning_and_finds_it() -> None:
    engine = StepEngine(ROUND)
    engine.offer(0, request(0.0, 1_536, 1, (1, 2, 3)), 0.0)
    engine.offer(1, request(0.0, 1_536, 1, (1, 2, 4)), 0.0)
    told = {event.request_id: event for event in engine.advance(60.0) if isinstance(event, FirstToken)}
    assert [told[number].cached_tokens for number in (0, 1)] == [0, 1_024]


def test_load_is_what_waits_and_runs_and_what_the_cache_holds_for_it() -> None:
    engine = StepEngine(ROUND, capacity_blocks=10)
    engine.offer(0, request(0.0, 2_048, 100, (1, 2, 3, 4)), 0.0)
    engine.offer(1, request(0.0, 1_000, 100, (8, 9)), 0.0)
    load = engine.load()
    assert (load.num_running, load.num_waiting, load.num_waiting_tokens) == (1, 1, 1_000)
    assert (load.kv_capacity_tokens, load.kv_active_tokens, load.kv_free_tokens) == (5_120, 2_560, 2_560)
    assert (engine.num_requests, engine.waiting_tokens, engine.unanswered()) == (2, 1_000, [0, 1])
    engine.advance(60.0)
    load = engine.load()
    assert (load.num_running, load.num_waiting, load.kv_evictable_tokens) == (0, 0, 6 * BLOCK_TOKENS)
    assert (engine.num_requests, engine.waiting_tokens, engine.unanswered()) == (0, 0, [])


def test_who_has_no_room_waits_until_another_has_ended() -> None:
    engine = StepEngine(ROUND, capacity_blocks=4)
    engine.offer(0, request(0.0, 1_500, 100, (1, 2, 3)), 0.0)
    engine.offer(1, request(0.0, 1_500, 100, (7, 8, 9)), 0.0)
    events = engine.advance(60.0)
    assert [(type(event), event.request_id) for event in events] == [
        *((FirstToken, 0), (Ended, 0), (FirstToken, 1), (Ended, 1)),
    ]


def test_prefixes_are_computed_ahead_while_nobody_asks_and_found_afterwards() -> None:
    engine = StepEngine(ROUND)
    engine.warm([request(0.0, 1_024, 50, (1, 2)), request(0.0, 512, 50, (5,))], 0.0)
    assert engine.num_to_warm == 1
    assert engine.advance(5.0) == []
    assert (engine.num_to_warm, engine.num_requests) == (0, 0)
    engine.offer(0, request(5.0, 1_100, 1, (1, 2, 3)), 5.0)
    assert [event.cached_tokens for event in engine.advance(9.0) if isinstance(event, FirstToken)] == [1_024]


def test_a_prompt_longer_than_the_cache_and_a_shrinking_that_parts_blocks_are_refused() -> None:
    with pytest.raises(CacheTooSmall, match="1536 tokens does not fit into 2 blocks"):
        StepEngine(ROUND, capacity_blocks=2).offer(0, request(0.0, 1_536, 1, (1, 2, 3)), 0.0)
    with pytest.raises(ValueError, match="shrink: 3 cannot be used"):
        StepEngine(ROUND, shrink=3)


def test_a_trace_is_stretched_until_the_engine_is_as_busy_as_asked() -> None:
    requests = paced(PROCESSOR, conversations(5, num_requests=100, rate=30.0), busy=0.6, shrink=16)
    told = answers(PROCESSOR, requests, shrink=16)
    assert told.busy_seconds / max(told.ended_at.values()) == pytest.approx(0.6, abs=0.02)
