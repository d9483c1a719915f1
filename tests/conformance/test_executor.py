"""What every `core.ports.Executor` owes the scheduler: the real one over a tiny model, and the fake that tests use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from support_fake_executor import FakeExecutor
from support_torch_executor import FailingModel, capacity, composed, tiny_executor

from sapwood_engine.core.ports import Capacity, Executor
from sapwood_engine.core.request import SamplingParams
from sapwood_engine.core.step import (
    NO_TOKEN,
    PENDING_TOKEN,
    PageCopy,
    PageUpdate,
    SeatOpened,
    StepPlan,
    StepResult,
)
from sapwood_engine.errors import StepFailed
from sapwood_engine.kernels.attention.reference import ReferenceAttention

LIMITS = capacity(num_pages=64, page_size=4)
GREEDY = SamplingParams(seed=0, temperature=0.0)
RANDOM = SamplingParams(seed=21, temperature=0.9)
PROMPT = (11, 5, 190, 42, 7, 7, 63, 120, 3, 99)

Make = Callable[[frozenset[int]], Executor]
"""From the numbers of the launches that fail to an executor."""


def make_fake(fail_launches: frozenset[int]) -> Executor:
    return FakeExecutor(LIMITS, fail_launches=fail_launches)


def make_torch(fail_launches: frozenset[int]) -> Executor:
    return tiny_executor(LIMITS, model=FailingModel(composed(ReferenceAttention()), fail_launches))


@pytest.fixture(params=[make_fake, make_torch], ids=["fake", "torch"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Executor] = []

    def build(fail_launches: frozenset[int]) -> Executor:
        made.append(request.param(fail_launches))
        return made[-1]

    yield build
    for executor in made:
        executor.close()


@dataclass(slots=True)
class Driver:
    """Writes plans by hand, one row at a time."""

    executor: Executor
    num_steps: int = 0
    next_page: dict[int, int] = field(default_factory=dict)

    def plan(self, *rows: StepPlan) -> StepPlan:
        """Join one-row plans into one step."""
        joined = StepPlan(self.num_steps, "mixed", [], [], [], [], [])
        self.num_steps += 1
        for row in rows:
            for column in ("seats", "starts", "lengths", "token_ids", "samples"):
                getattr(joined, column).extend(getattr(row, column))
            joined.opened += row.opened
            joined.page_updates += row.page_updates
            joined.copies += row.copies
            if row.prompt_targets:
                joined.prompt_targets[len(joined.seats) - 1] = row.prompt_targets[0]
            if row.suppress_stops:
                joined.suppress_stops.append(len(joined.seats) - 1)
        return joined

    def run(self, *rows: StepPlan) -> StepResult:
        self.executor.launch(self.plan(*rows))
        return self.executor.collect()

    def generate(self, row: StepPlan, count: int) -> list[int]:
        """Run a prompt's row and then decode steps, one after the other; ``count`` tokens in all."""
        tokens = self.run(row).token_ids
        position = row.starts[0] + row.lengths[0]
        while len(tokens) < count:
            tokens.append(self.run(decode(row.seats[0], position, tokens[-1])).token_ids[0])
            position += 1
        return tokens


def prefill(
    seat: int,
    tokens: tuple[int, ...] = PROMPT,
    *,
    start: int = 0,
    first_page: int = 0,
    num_pages: int = 8,
    sampling: SamplingParams = GREEDY,
    samples: bool = True,
    suppressible: tuple[int, ...] = (),
    prompt: tuple[int, ...] | None = None,
) -> StepPlan:
    """A row that opens ``seat`` and computes ``tokens`` from ``start`` on, in pages ``first_page`` and following."""
    row = StepPlan(0, "prefill", [seat], [start], [len(tokens)], list(tokens), [samples])
    row.opened.append(SeatOpened(seat, sampling, suppressible, prompt or tokens, ()))
    row.page_updates.append(PageUpdate(seat, 0, tuple(range(first_page, first_page + num_pages))))
    return row


def more(seat: int, start: int, tokens: tuple[int, ...], *, samples: bool = True) -> StepPlan:
    """A row that goes on with a prompt."""
    return StepPlan(0, "prefill", [seat], [start], [len(tokens)], list(tokens), [samples])


def decode(seat: int, position: int, token: int) -> StepPlan:
    return StepPlan(0, "decode", [seat], [position], [1], [token], [True])


def continuation(make: Make, count: int = 6, sampling: SamplingParams = GREEDY) -> list[int]:
    """What follows PROMPT on an executor of its own."""
    return Driver(make(frozenset())).generate(prefill(0, sampling=sampling), count)


def test_results_come_in_the_order_of_launches_two_in_flight(make: Make) -> None:
    driver = Driver(make(frozenset()))
    driver.executor.launch(driver.plan(prefill(0)))
    driver.executor.launch(driver.plan(prefill(1, first_page=20)))
    assert [driver.executor.collect().step_id for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_a_pending_token_is_the_one_that_the_step_before_samples(make: Make, sampling: SamplingParams) -> None:
    wanted = continuation(make, sampling=sampling)
    driver = Driver(make(frozenset()))
    driver.executor.launch(driver.plan(prefill(0, sampling=sampling)))
    tokens: list[int] = []
    for position in range(len(PROMPT), len(PROMPT) + 5):
        driver.executor.launch(driver.plan(decode(0, position, PENDING_TOKEN)))
        tokens += driver.executor.collect().token_ids
    tokens += driver.executor.collect().token_ids
    assert tokens == wanted


def test_a_row_that_samples_nothing_has_no_token(make: Make) -> None:
    driver = Driver(make(frozenset()))
    result = driver.run(prefill(0, PROMPT[:4], samples=False), prefill(1, first_page=20))
    assert result.token_ids[0] == NO_TOKEN
    assert 0 <= result.token_ids[1] < LIMITS.vocab_size


@pytest.mark.parametrize("cuts", [(1, 10), (4, 10), (3, 5, 6, 10)])
def test_a_prompt_in_chunks_gives_what_it_gives_at_once(make: Make, cuts: tuple[int, ...]) -> None:
    driver = Driver(make(frozenset()))
    result = driver.run(prefill(0, PROMPT[: cuts[0]], samples=False, prompt=PROMPT))
    for begin, end in itertools.pairwise(cuts):
        result = driver.run(more(0, begin, PROMPT[begin:end], samples=end == len(PROMPT)))
    assert result.token_ids == continuation(make, 1)


def test_rows_of_a_step_do_not_see_each_other(make: Make) -> None:
    driver = Driver(make(frozenset()))
    result = driver.run(
        prefill(2, tuple(range(30, 55)), first_page=20, sampling=RANDOM),
        prefill(0),
        prefill(5, (9,), first_page=40),
    )
    assert result.token_ids[1] == continuation(make, 1)[0]


def test_seats_may_share_pages(make: Make) -> None:
    driver = Driver(make(frozenset()))
    driver.run(prefill(0))
    shared = prefill(1, PROMPT[8:], start=8, prompt=PROMPT)
    shared.page_updates[:] = [PageUpdate(1, 0, (0, 1, 30, 31))]
    assert driver.generate(shared, 6) == continuation(make)


def test_page_tables_grow_and_change_where_an_update_says(make: Make) -> None:
    driver = Driver(make(frozenset()))
    row = prefill(0, PROMPT[:6], samples=False, num_pages=2, prompt=PROMPT)
    driver.run(row)
    rest = more(0, 6, PROMPT[6:])
    rest.page_updates.append(PageUpdate(0, 1, (17, 40)))
    rest.copies.append(PageCopy(source=1, target=17, num_tokens=2))
    assert driver.run(rest).token_ids == continuation(make, 1)


def test_copies_happen_in_order_and_before_the_step_writes(make: Make) -> None:
    driver = Driver(make(frozenset()))
    driver.run(prefill(0))
    # Seat 1 takes tokens 8 and 9 of page 2 through page 50 into page 51; seat 0's page 2 is written in the same step.
    branch = more(1, 10, (77,))
    branch.opened.append(SeatOpened(1, GREEDY, (), (*PROMPT, 77), ()))
    branch.page_updates.append(PageUpdate(1, 0, (0, 1, 51)))
    branch.copies += [PageCopy(2, 50, 2), PageCopy(50, 51, 2)]
    result = driver.run(prefill(0, (1, 2, 3), start=8, prompt=(*PROMPT[:8], 1, 2, 3)), branch)
    fresh = Driver(make(frozenset()))
    assert result.token_ids[1] == fresh.run(prefill(0, (*PROMPT, 77))).token_ids[0]


def test_a_seat_opened_again_has_forgotten_the_request_before(make: Make) -> None:
    driver = Driver(make(frozenset()))
    driver.generate(prefill(0, (4, 4, 4), sampling=RANDOM), 5)
    assert driver.generate(prefill(0, sampling=RANDOM), 6) == continuation(make, sampling=RANDOM)


def test_suppressed_ids_are_not_sampled_in_the_rows_listed(make: Make) -> None:
    best = continuation(make, 1)[0]
    driver = Driver(make(frozenset()))
    listed = prefill(0, suppressible=(best,))
    listed.suppress_stops.append(0)
    result = driver.run(listed, prefill(1, first_page=20, suppressible=(best,)))
    assert result.token_ids[0] != best
    assert result.token_ids[1] == best


def test_a_row_that_nothing_can_be_drawn_for_is_named_and_the_others_get_their_tokens(make: Make) -> None:
    wanted = continuation(make, 3)
    driver = Driver(make(frozenset()))
    banned = prefill(1, first_page=20, suppressible=tuple(range(LIMITS.vocab_size)))
    banned.suppress_stops.append(0)
    driver.executor.launch(driver.plan(banned, prefill(0)))
    # Launched before anybody knows: the seat that got nothing may be in it.
    driver.executor.launch(driver.plan(*(decode(seat, len(PROMPT), PENDING_TOKEN) for seat in (1, 0))))
    first, second = driver.executor.collect(), driver.executor.collect()
    assert first.token_ids == [NO_TOKEN, wanted[0]]
    assert (first.unusable_rows, second.unusable_rows) == ([0], [])
    third = driver.run(decode(0, len(PROMPT) + 1, second.token_ids[1]))
    assert [second.token_ids[1], *third.token_ids] == wanted[1:]
    assert driver.generate(prefill(1, first_page=20), 3) == wanted


def test_log_probabilities_come_where_the_seat_asks(make: Make) -> None:
    driver = Driver(make(frozenset()))
    asking = SamplingParams(seed=0, temperature=0.0, num_logprobs=0)
    result = driver.run(prefill(0), prefill(1, first_page=20, sampling=asking))
    assert set(result.logprobs) == {1}
    assert result.logprobs[1].token_id == result.token_ids[1]
    assert result.logprobs[1].logprob <= 0


def test_prompt_log_probabilities_do_not_depend_on_the_chunks(make: Make) -> None:
    asking = SamplingParams(seed=0, temperature=0.0, num_prompt_logprobs=0)
    whole, parts = Driver(make(frozenset())), Driver(make(frozenset()))
    row = prefill(0, sampling=asking)
    row.prompt_targets[0] = PROMPT[1:]
    at_once = whole.run(row).prompt_logprobs[0]
    first = prefill(0, PROMPT[:3], sampling=asking, samples=False, prompt=PROMPT)
    first.prompt_targets[0] = PROMPT[1:4]
    second = more(0, 3, PROMPT[3:])
    second.prompt_targets[0] = PROMPT[4:]
    in_parts = [
        *parts.run(first).prompt_logprobs[0],
        *parts.run(prefill(1, first_page=20), second).prompt_logprobs[1],
    ]
    assert [t.token_id for t in in_parts] == list(PROMPT[1:])
    assert [t.token_id for t in at_once] == list(PROMPT[1:])
    assert [t.logprob for t in in_parts] == pytest.approx([t.logprob for t in at_once], abs=1e-5)


def test_a_failed_step_raises_with_its_number_and_harms_no_other_seat(make: Make) -> None:
    wanted = continuation(make)
    driver = Driver(make(frozenset({2})))
    tokens = driver.run(prefill(0)).token_ids
    driver.run(prefill(1, first_page=20))
    with pytest.raises(StepFailed) as failed:
        driver.run(decode(1, len(PROMPT), 5))
    assert failed.value.step_id == 2
    for position in range(len(PROMPT), len(PROMPT) + 5):
        tokens += driver.run(decode(0, position, tokens[-1])).token_ids
    assert tokens == wanted


def test_after_a_failure_a_step_already_launched_still_runs(make: Make) -> None:
    wanted = continuation(make, 2)
    driver = Driver(make(frozenset({1})))
    first = driver.run(prefill(0)).token_ids[0]
    driver.executor.launch(driver.plan(prefill(1, first_page=20)))
    driver.executor.launch(driver.plan(decode(0, len(PROMPT), first), decode(1, len(PROMPT), PENDING_TOKEN)))
    with pytest.raises(StepFailed):
        driver.executor.collect()
    assert [first, driver.executor.collect().token_ids[0]] == wanted


def test_a_seat_whose_step_failed_can_be_opened_again(make: Make) -> None:
    driver = Driver(make(frozenset({0})))
    with pytest.raises(StepFailed):
        driver.run(prefill(0))
    assert driver.generate(prefill(0), 6) == continuation(make)


def test_close_may_be_called_twice_and_with_steps_in_flight(make: Make) -> None:
    driver = Driver(make(frozenset()))
    driver.executor.launch(driver.plan(prefill(0)))
    driver.executor.close()
    driver.executor.close()


def test_the_capacity_is_constant(make: Make) -> None:
    executor = make(frozenset())
    before: Capacity = executor.capacity
    Driver(executor).run(prefill(0))
    assert executor.capacity == before == LIMITS
