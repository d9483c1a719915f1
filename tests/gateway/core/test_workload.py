"""What is kept of the last hour of a service, what is let go of, and what is told of it."""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_contract.http import TRACE_NAME_BYTES, TracedRequest
from sapwood_contract.keys import HASH_BYTES
from sapwood_gateway.core.block_names import Naming, PromptSpace, prompt_of
from sapwood_gateway.core.prefix_affinity import Prompt
from sapwood_gateway.core.routes import ServiceKey
from sapwood_gateway.core.workload import Kept, WorkloadLog, block_names, traced

CHAT, CODE = ServiceKey("team", "chat"), ServiceKey("team", "code")
HOUR = 3_600.0


def prompt(token_ids: Sequence[int], block_tokens: int = 16) -> Prompt:
    return prompt_of(array("i", token_ids), Naming("revision", block_tokens), PromptSpace(), None)


def names(token_ids: Sequence[int], block_tokens: int = 16) -> list[bytes]:
    found = block_names(prompt(token_ids, block_tokens), block_tokens)
    return [found[at : at + HASH_BYTES] for at in range(0, len(found), HASH_BYTES)]


def note(log: WorkloadLog, at: float, *, service: ServiceKey = CHAT, tokens: int = 600, names: bytes = b"") -> None:
    log.note(service, arrived_at=at, num_prompt_tokens=tokens, num_answer_tokens=7, names=names)


def ids(*requests: tuple[int, bytes]) -> list[tuple[int, ...]]:
    """Return the ids of requests with so many tokens and these names."""
    log = WorkloadLog(since=0.0)
    for at, (tokens, named) in enumerate(requests):
        note(log, float(at), tokens=tokens, names=named)
    return [each.hash_ids for each in traced(log.of(CHAT, now=10.0), key=None).requests]


# --- names


@pytest.mark.parametrize(
    ("tokens", "block_tokens", "named"),
    [
        (0, 16, 0),
        (15, 16, 0),
        (16, 16, 1),
        (511, 16, 1),
        (512, 16, 1),
        (527, 16, 1),  # what is beyond fills no block
        (528, 16, 2),
        (1_024, 16, 2),
        (1_024, 1, 2),
        (1_025, 1, 3),
        (1_300, 512, 2),
        (1_540, 48, 0),
        (1_540, 1_024, 0),
        (200_000, 16, 256),  # so much of a prompt is hashed
    ],
)
def test_each_piece_that_blocks_reach_has_a_name(tokens: int, block_tokens: int, named: int) -> None:
    found = names(range(tokens), block_tokens)
    assert len(found) == len(set(found)) == named


@given(st.integers(0, 3_000), st.integers(0, 3_000), st.integers(0, 3_000), st.sampled_from([1, 16, 128, 512]))
def test_names_are_equal_where_prompts_are_and_nowhere_else(
    shared: int, one: int, other: int, block_tokens: int
) -> None:
    both = [[*[1] * min(shared, length), *[mark] * max(0, length - shared)] for mark, length in ((2, one), (3, other))]
    a, b = (names(each, block_tokens) for each in both)
    alike = sum(x == y for x, y in zip(a, b, strict=False))
    assert [x == y for x, y in zip(a, b, strict=False)] == [True] * alike + [False] * (min(len(a), len(b)) - alike)
    common = min(shared, one, other)
    assert common // 512 <= alike <= -(-common // 512)


# --- what is kept


def test_requests_are_told_in_order_of_arrival_with_their_lengths() -> None:
    log = WorkloadLog(since=0.0)
    note(log, HOUR + 2.5, tokens=600)
    note(log, HOUR + 1.0, tokens=100)  # it came before, and ended after
    told = traced(log.of(CHAT, now=HOUR + 10.0), key=None)
    assert told.requests == (TracedRequest(3_591_000, 100, 7, (0,)), TracedRequest(3_592_500, 600, 7, (1, 2)))
    assert told.covered_seconds == HOUR


@pytest.mark.parametrize(
    ("now", "told", "covered"),
    [(5.0, 2, 5.0), (HOUR, 2, HOUR), (HOUR + 1.0, 2, HOUR), (HOUR + 1.5, 1, HOUR), (HOUR + 3.0, 0, HOUR)],
)
def test_what_is_older_than_an_hour_is_not_told(now: float, told: int, covered: float) -> None:
    log = WorkloadLog(since=0.0)
    note(log, 1.0)
    note(log, 2.0)
    found = traced(log.of(CHAT, now=now), key=None)
    assert (len(found.requests), found.covered_seconds) == (told, covered)


def test_of_a_service_that_nobody_asked_there_is_nothing_and_nothing_is_missing() -> None:
    assert WorkloadLog(since=10.0).of(CHAT, now=70.0) == Kept((), 60.0, 70.0 - HOUR)


def test_what_does_not_fit_is_the_oldest_and_it_is_told() -> None:
    log = WorkloadLog(since=0.0, most_bytes_of_service=600)
    for at in range(100):
        note(log, float(at))
        assert log.check_invariants() == []
    found = log.of(CHAT, now=100.0)
    assert (len(found.entries), found.covered_seconds) == (5, 6.0)  # 105 bytes each; the one of 94 is gone


def test_a_prompt_that_is_said_to_be_endless_takes_the_memory_of_its_own_service_alone() -> None:
    log = WorkloadLog(since=0.0)
    note(log, 1.0, service=CODE)
    note(log, 1.0)
    note(log, 2.0, tokens=999_999_999)
    assert log.check_invariants() == []
    assert [len(log.of(service, now=3.0).entries) for service in (CHAT, CODE)] == [0, 1]
    assert log.of(CHAT, now=3.0).covered_seconds == 1.0


def test_where_all_services_have_too_much_the_one_with_most_lets_go() -> None:
    log = WorkloadLog(since=0.0, most_bytes=1_060)
    note(log, 0.0, service=CODE)
    for at in range(100):
        note(log, float(at))
        assert log.check_invariants() == []
    code, chat = (log.of(service, now=100.0) for service in (CODE, CHAT))
    assert (len(code.entries), code.covered_seconds) == (1, 100.0)
    assert (len(chat.entries), chat.covered_seconds) == (9, 10.0)


def test_of_services_that_were_not_asked_for_an_hour_nothing_is_kept() -> None:
    log = WorkloadLog(since=0.0, most_bytes=800)
    note(log, 0.0, service=CODE)
    note(log, HOUR + 1.0)
    assert log.check_invariants() == []
    assert log.of(CODE, now=1.0).entries == ()


# --- what is told


def test_equal_names_have_equal_ids_and_pieces_without_one_are_new_every_time() -> None:
    a, b, c = (bytes([number]) * HASH_BYTES for number in range(3))
    assert ids((1_100, a + b), (1_024, a + c), (1_000, b""), (1_000, b"")) == [(0, 1, 3), (0, 2), (4, 5), (6, 7)]


def test_two_gateways_have_the_same_names_for_the_same_under_one_key_and_under_no_other() -> None:
    def told(key: bytes | None, *noted: bytes) -> list[bytes]:
        log = WorkloadLog(since=0.0)
        for at, each in enumerate(noted):
            note(log, float(at), tokens=512, names=each)
        found = b64decode(traced(log.of(CHAT, now=9.0), key=key).block_names)
        return [found[at : at + TRACE_NAME_BYTES] for at in range(0, len(found), TRACE_NAME_BYTES)]

    a, b = (bytes([number]) * HASH_BYTES for number in range(2))
    here, there, later = told(b"key", a, b, b""), told(b"key", b), told(b"other", a, b)
    assert here[1:] == there
    assert not {*here} & {*later}
    assert told(None, a) == []
    assert not any(each in a + b for each in (*here, *later))
