"""An executor without a model: every token is a fingerprint of the KV that a real model would have read.

`FakeExecutor` keeps what each KV slot holds (a token and its position), seats with page tables, and the
tokens sampled last. It samples ``fingerprint(all tokens read back through the page table)``, so a wrong page
table, a page recycled too early, a missed copy or a stale pending token changes the output; and it asserts
that every position read is the position stored. `reference_tokens` says what an engine without cache,
chunks, overlap or batch must produce for the same prompt.

Steps run at `collect`, the latest moment the port allows: a planner that changes a launched plan is caught.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.request import SamplingParams, TokenLogprobs
from sapwood_engine.core.step import NO_TOKEN, PENDING_TOKEN, StepPlan, StepResult
from sapwood_engine.errors import StepFailed

GARBAGE_TOKEN = -7
"""What a slot holds that was never written, or that a failed step wrote."""
GARBAGE_POSITION = -9

TokenOverride = Callable[[tuple[int, ...]], int | None]
"""Given every token before it, the token to emit instead of the fingerprint; None leaves it, and with `NO_TOKEN` none
can be drawn."""


def capacity_for_tests(
    *,
    num_pages: int = 64,
    page_size: int = 4,
    max_context_tokens: int = 1 << 20,
    max_seats: int = 8,
    max_step_tokens: int = 64,
    vocab_size: int = 1000,
) -> Capacity:
    """A small capacity; every field may be set."""
    return Capacity(
        num_pages=num_pages,
        page_size=page_size,
        max_context_tokens=max_context_tokens,
        max_seats=max_seats,
        max_step_tokens=max_step_tokens,
        vocab_size=vocab_size,
    )


def fingerprint(
    tokens: bytes,
    *,
    sampling: SamplingParams,
    num_prompt: int,
    history: Sequence[int],
    suppressed: frozenset[int],
    vocab_size: int,
) -> int:
    """Return the token that follows ``tokens`` (int32 LE): like a model's, a function of all of them.

    With a temperature the seed and the output index enter; with a penalty the history that the seat keeps;
    tokens of ``suppressed`` are never returned.
    """
    digest = hashlib.blake2b(tokens, digest_size=8)
    if sampling.temperature > 0:
        digest.update(f"{sampling.seed},{len(tokens) // 4 - num_prompt}".encode())
    if (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) != (
        0.0,
        0.0,
        1.0,
    ):
        digest.update(array("i", history).tobytes())
    token = int.from_bytes(digest.digest(), "little") % vocab_size
    while token in suppressed:
        token = (token + 1) % vocab_size
    return token


def fake_logprob(previous: Sequence[int], token: int) -> TokenLogprobs:
    """The log-probability that the fake reports for ``token`` after ``previous``: a function of both."""
    digest = hashlib.blake2b(array("i", [*previous, token]).tobytes(), digest_size=4).digest()
    return TokenLogprobs(token, -int.from_bytes(digest, "little") / 2**32)


def reference_tokens(
    prompt: Sequence[int],
    num_tokens: int,
    *,
    sampling: SamplingParams | None = None,
    stop_token_ids: frozenset[int] = frozenset(),
    min_tokens: int = 0,
    override: TokenOverride | None = None,
    vocab_size: int = 1000,
) -> list[int]:
    """Return what a request must produce: at most ``num_tokens``, a sampled stop token included."""
    sampling = sampling or SamplingParams(seed=0, temperature=0.0)
    tokens = list(prompt)
    for index in range(num_tokens):
        forced = override(tuple(tokens)) if override else None
        token = (
            forced
            if forced is not None
            else fingerprint(
                array("i", tokens).tobytes(),
                sampling=sampling,
                num_prompt=len(prompt),
                history=tokens,
                suppressed=stop_token_ids if index < min_tokens else frozenset(),
                vocab_size=vocab_size,
            )
        )
        tokens.append(token)
        if token in stop_token_ids and index + 1 > min_tokens:
            break
    return tokens[len(prompt) :]


@dataclass(slots=True)
class _Seat:
    """What the executor remembers of the request in a seat."""

    sampling: SamplingParams
    suppressible: frozenset[int]
    num_prompt: int
    history: list[int]
    last_token: int = GARBAGE_TOKEN
    page_table: list[int] = field(default_factory=list)
    poisoned: bool = False
    """A failed step wrote to it: what it reads is undefined until it is opened again."""


@dataclass(slots=True)
class _Launched:
    """A step in flight, and which request (by the number of its seat's opening) uses which page in it."""

    number: int
    plan: StepPlan
    users: dict[int, set[int]]


class _LaunchWatch:
    """Page tables as of the newest launch.

    Asserts that no step writes a page that a launched step of another request uses. A real device would run
    the two in order and forgive it; the scheduler promises more.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._tables: dict[int, list[int]] = {}
        self._opening: dict[int, int] = {}
        self._num_openings = 0

    def follow(self, plan: StepPlan, in_flight: Iterable[_Launched]) -> dict[int, set[int]]:
        """Apply the plan's seats and page updates; returns page -> openings that use it in this step."""
        for opened in plan.opened:
            self._tables[opened.seat] = []
            self._opening[opened.seat] = self._num_openings
            self._num_openings += 1
        for update in plan.page_updates:
            self._tables[update.seat][update.first :] = update.pages
        users: dict[int, set[int]] = {}
        for seat, start, length in zip(plan.seats, plan.starts, plan.lengths, strict=True):
            opening = self._opening[seat]
            used = self._tables[seat][: (start + length - 1) // self._page_size + 1]
            for page in used:
                users.setdefault(page, set()).add(opening)
            for page in used[start // self._page_size :]:
                for step in in_flight:
                    others = step.users.get(page, set()) - {opening}
                    assert not others, (
                        f"step {plan.step_id} writes page {page}, in use by launched step {step.plan.step_id}"
                    )
        return users


class FakeExecutor:
    """Implements `core.ports.Executor` over simulated KV.

    ``fail_launches`` are launch numbers (from 0) whose step fails: it runs, then all it wrote becomes
    garbage. ``override`` scripts tokens. ``seconds_per_token`` is what a step reports as device time, per
    token.
    """

    def __init__(
        self,
        capacity: Capacity | None = None,
        *,
        fail_launches: frozenset[int] = frozenset(),
        override: TokenOverride | None = None,
        seconds_per_token: float = 0.0,
    ) -> None:
        self._capacity = capacity or capacity_for_tests()
        page_size = self._capacity.page_size
        self._tokens = [array("i", [GARBAGE_TOKEN]) * page_size for _ in range(self._capacity.num_pages)]
        self._positions = [array("i", [GARBAGE_POSITION]) * page_size for _ in range(self._capacity.num_pages)]
        self._seats: dict[int, _Seat] = {}
        self._launched: deque[_Launched] = deque()
        self._watch = _LaunchWatch(page_size)
        self._last_step_id: int | None = None
        self._fail_launches = fail_launches
        self._override = override
        self._seconds_per_token = seconds_per_token
        self.num_launches = 0
        self.num_tokens_computed = 0
        """Over all rows of all steps collected."""
        self.closed = False

    @property
    def capacity(self) -> Capacity:
        """Constant."""
        return self._capacity

    def launch(self, plan: StepPlan) -> None:
        """Queue the step; asserts what the port asks of its caller."""
        assert not self.closed
        assert len(self._launched) < 2, "more than two steps in flight"
        assert self._last_step_id is None or plan.step_id > self._last_step_id, "step ids must increase"
        self._check_shape(plan)
        self._last_step_id = plan.step_id
        users = self._watch.follow(plan, self._launched)
        self._launched.append(_Launched(self.num_launches, plan, users))
        self.num_launches += 1

    def collect(self) -> StepResult:
        """Run the oldest launched step and return its result, or raise `StepFailed`."""
        step = self._launched.popleft()
        plan = step.plan
        self.num_tokens_computed += len(plan.token_ids)
        self._prepare(plan)
        written = self._write(plan)
        if step.number in self._fail_launches:
            for page in {page for page, _ in written}:
                self._tokens[page] = array("i", [GARBAGE_TOKEN]) * self._capacity.page_size
                self._positions[page] = array("i", [GARBAGE_POSITION]) * self._capacity.page_size
            for seat in plan.seats:
                self._seats[seat].poisoned = True
            raise StepFailed(plan.step_id, "scripted failure")
        return self._sample(plan)

    def close(self) -> None:
        """Idempotent."""
        self.closed = True

    def page_table(self, seat: int) -> list[int]:
        """What the seat's rows read through, for assertions."""
        return list(self._seats[seat].page_table)

    def _check_shape(self, plan: StepPlan) -> None:
        rows = len(plan.seats)
        assert rows > 0, "an empty step"
        assert rows == len(plan.starts) == len(plan.lengths) == len(plan.samples), "columns of unequal length"
        assert len(set(plan.seats)) == rows, f"a seat has two rows: {plan.seats}"
        assert all(0 <= seat < self._capacity.max_seats for seat in plan.seats), f"no such seat: {plan.seats}"
        assert all(length > 0 for length in plan.lengths), f"an empty row: {plan.lengths}"
        assert sum(plan.lengths) == len(plan.token_ids) <= self._capacity.max_step_tokens, "token column"
        seats = set(plan.seats)
        assert all(update.seat in seats for update in plan.page_updates), "page update of a seat without a row"
        assert all(opened.seat in seats for opened in plan.opened), "seat opened without a row"
        pages = [page for update in plan.page_updates for page in update.pages]
        assert all(0 <= page < self._capacity.num_pages for page in pages), "no such page"

    def _prepare(self, plan: StepPlan) -> None:
        """Open seats, apply page updates, run the copies in order."""
        for opened in plan.opened:
            self._seats[opened.seat] = _Seat(
                sampling=opened.sampling,
                suppressible=frozenset(opened.suppressible_ids),
                num_prompt=len(opened.prompt_ids),
                history=[*opened.prompt_ids, *opened.output_ids],
            )
        for update in plan.page_updates:
            table = self._seats[update.seat].page_table
            assert update.first <= len(table), f"page update leaves a gap: {update}, table has {len(table)}"
            table[update.first :] = update.pages
        for copy in plan.copies:
            for column in (self._tokens, self._positions):
                column[copy.target][: copy.num_tokens] = column[copy.source][: copy.num_tokens]

    def _write(self, plan: StepPlan) -> set[tuple[int, int]]:
        """Write every row's tokens; returns the ``(page, offset)`` written, each of which has one writer."""
        page_size = self._capacity.page_size
        written: set[tuple[int, int]] = set()
        cursor = 0
        for seat_id, start, length in zip(plan.seats, plan.starts, plan.lengths, strict=True):
            seat = self._seats[seat_id]
            for position in range(start, start + length):
                token = plan.token_ids[cursor]
                cursor += 1
                if token == PENDING_TOKEN:
                    assert length == 1, "a pending token belongs to a decode row"
                    token = seat.last_token
                assert position // page_size < len(seat.page_table), (
                    f"position {position} of seat {seat_id} has no page"
                )
                page, offset = seat.page_table[position // page_size], position % page_size
                assert (page, offset) not in written, f"page {page} slot {offset} has two writers in one step"
                written.add((page, offset))
                self._tokens[page][offset] = token
                self._positions[page][offset] = position
        return written

    def _read(self, seat: _Seat, num_tokens: int) -> bytes:
        """Read tokens 0 … num_tokens - 1 through the page table, as attention would."""
        page_size = self._capacity.page_size
        pages = seat.page_table[: -(-num_tokens // page_size)]
        positions = b"".join(self._positions[page].tobytes() for page in pages)[: 4 * num_tokens]
        tokens = b"".join(self._tokens[page].tobytes() for page in pages)[: 4 * num_tokens]
        if not seat.poisoned:
            expected = array("i", range(num_tokens)).tobytes()
            assert positions == expected, f"KV read back holds positions {list(array('i', positions))}"
        return tokens

    def _sample(self, plan: StepPlan) -> StepResult:
        result = StepResult(plan.step_id, [], self._seconds_per_token * len(plan.token_ids))
        suppressing = set(plan.suppress_stops)
        columns = zip(plan.seats, plan.starts, plan.lengths, plan.samples, strict=True)
        for row, (seat_id, start, length, samples) in enumerate(columns):
            seat = self._seats[seat_id]
            tokens = self._read(seat, start + length)
            if row in plan.prompt_targets:
                result.prompt_logprobs[row] = _prompt_logprobs(tokens, start, plan.prompt_targets[row])
            if not samples:
                result.token_ids.append(NO_TOKEN)
                continue
            known = tuple(array("i", tokens))
            forced = self._override(known) if self._override else None
            suppressed = seat.suppressible if row in suppressing else frozenset()
            if forced == NO_TOKEN or len(suppressed) == self._capacity.vocab_size:
                result.token_ids.append(NO_TOKEN)
                result.unusable_rows.append(row)
                continue
            token = (
                forced
                if forced is not None
                else fingerprint(
                    tokens,
                    sampling=seat.sampling,
                    num_prompt=seat.num_prompt,
                    history=seat.history,
                    suppressed=suppressed,
                    vocab_size=self._capacity.vocab_size,
                )
            )
            seat.last_token = token
            seat.history.append(token)
            result.token_ids.append(token)
            if seat.sampling.num_logprobs is not None:
                result.logprobs[row] = fake_logprob(known, token)
        return result


def _prompt_logprobs(tokens: bytes, start: int, targets: tuple[int, ...]) -> tuple[TokenLogprobs, ...]:
    known = array("i", tokens)
    return tuple(fake_logprob(known[: start + i + 1], target) for i, target in enumerate(targets))
