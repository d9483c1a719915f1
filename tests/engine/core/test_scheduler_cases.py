"""Faults that schedulers of this kind were reported for, each named after the behaviour that is right."""

from __future__ import annotations

import pytest
from support_fake_executor import capacity_for_tests, reference_tokens
from support_scheduling import Engine, request

from sapwood_contract.launch import SchedulerPolicy
from sapwood_engine.core.admission import Accepted, Refused, SchedulerConfig, token_limit
from sapwood_engine.core.prefix_cache import PrefixCache, Shortfall
from sapwood_engine.core.request import RequestId, SamplingParams


def prompt(first: int, num_tokens: int) -> list[int]:
    """Tokens that no prompt of another ``first`` shares."""
    return [first * 1000 + i for i in range(num_tokens)]


SCORING = SamplingParams(seed=0, temperature=0.0, num_prompt_logprobs=0)


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_every_prompt_length_is_refused_at_once_or_ends_in_bounded_steps(max_tokens: int) -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=8, page_size=16))
    limit = token_limit(engine.capacity)
    for length in range(1, 130):
        outcome = engine.submit(request(str(length), prompt(length, length), max_tokens=max_tokens, sampling=SCORING))
        fits = length + min(1, max_tokens) <= limit
        assert isinstance(outcome, Accepted) == fits
        if isinstance(outcome, Refused):
            assert outcome.reason == "never_fits"
            assert str(length) in outcome.message
            assert str(limit) in outcome.message
        engine.run(max_steps=100)
        if fits:
            assert len(engine.answers[str(length)].token_ids) == min(max_tokens, limit - length)


def test_a_small_request_runs_after_a_large_one_was_cancelled_in_the_queue() -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=8, page_size=16))
    engine.submit(request("large", prompt(1, 112), max_tokens=1))
    engine.abort("large")
    engine.submit(request("small", prompt(2, 5), max_tokens=1))
    assert engine.run(max_steps=3)["small"].finish == "length"


class CacheThatRefusesOnce(PrefixCache):
    """Its n-th allocation comes to nothing, as if pages had been promised elsewhere at that moment."""

    def __init__(self, *, fail_at: int) -> None:
        super().__init__(num_pages=16, page_size=4)
        self.num_allocations = 0
        self.fail_at = fail_at

    def allocate(self, num_pages: int) -> list[int] | Shortfall:
        self.num_allocations += 1
        if self.num_allocations == self.fail_at:
            return Shortfall(num_pages, 0)
        return super().allocate(num_pages)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("fail_at", range(1, 12))
def test_a_failed_allocation_sends_nobody_away_and_changes_no_output(fail_at: int, overlap: bool) -> None:
    engine = Engine(
        capacity=capacity_for_tests(num_pages=16, page_size=4),
        cache=CacheThatRefusesOnce(fail_at=fail_at),
        overlap=overlap,
    )
    prompts = {name: prompt(int(name), 9) for name in "123"}
    for name, ids in prompts.items():
        engine.submit(request(name, ids, max_tokens=8))
    engine.run()
    for name, ids in prompts.items():
        assert engine.answers[name].token_ids == reference_tokens(ids, 8)


def test_an_impossible_request_at_the_head_fails_at_once_and_the_next_one_completes() -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=16, page_size=4))
    outcome = engine.submit(request("a", prompt(1, 100)))
    assert isinstance(outcome, Refused)
    assert outcome.reason == "never_fits"
    engine.submit(request("b", prompt(2, 10)))
    assert engine.run()["b"].finish == "length"


def pass_in_which_a_cold_request_runs(config: SchedulerConfig) -> int:
    """One slot a pass, and before every pass a fresh request with a 100-token hit arrives."""
    engine = Engine(
        config=config,
        capacity=capacity_for_tests(num_pages=128, page_size=4, max_seats=1, max_step_tokens=100),
    )
    engine.submit(request("first", prompt(1, 101), max_tokens=1))
    engine.run()
    engine.submit(request("cold", prompt(2, 90), max_tokens=1))
    for number in range(1, 100):
        engine.submit(request(f"warm {number}", [*prompt(1, 100), 9000 + number], max_tokens=1))
        engine.step()
        if engine.admitted[-1].request_id == "cold":
            return number
    raise AssertionError("the cold request did not run in 100 passes")


def test_a_cold_request_among_hits_runs_once_its_ageing_is_worth_more() -> None:
    # A hit of 100 tokens is worth 20 * 100 / (100 + 100) = 10 s, and a pass lasts one.
    config = SchedulerConfig(policy="sapwood", ttft_target_seconds=20.0, max_step_tokens=100)
    assert pass_in_which_a_cold_request_runs(config) in (10, 11)


@pytest.mark.parametrize("policy", ["lpm", "priority", "routing-key", "lof", "dfs-weight", "random"])
def test_a_cold_request_among_hits_runs_within_the_bound_under_every_policy(policy: SchedulerPolicy) -> None:
    assert pass_in_which_a_cold_request_runs(SchedulerConfig(policy=policy, max_overtaken=10)) <= 11


@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_of_high_priority_that_lacks_pages_preempts_and_is_admitted_in_the_same_pass(
    overlap: bool,
) -> None:
    engine = Engine(
        config=SchedulerConfig(policy="priority"),
        capacity=capacity_for_tests(num_pages=8, page_size=4),
        overlap=overlap,
    )
    low, high = prompt(1, 20), prompt(2, 24)
    engine.submit(request("low", low, max_tokens=10))
    for _ in range(4):
        engine.step()
    while engine.in_flight:
        engine.settle()
    engine.submit(request("high", high, max_tokens=4, priority=1))
    engine.step()
    assert [event.request_id for event in engine.preempted] == ["low"]
    assert engine.admitted[-1].request_id == "high"
    answers = engine.run()
    assert answers["high"].token_ids == reference_tokens(high, 4)
    assert answers["low"].token_ids == reference_tokens(low, 10)


@pytest.mark.parametrize("overlap", [False, True])
def test_no_more_are_preempted_for_priority_than_it_takes(overlap: bool) -> None:
    engine = Engine(
        config=SchedulerConfig(policy="priority"),
        capacity=capacity_for_tests(num_pages=16, page_size=4),
        overlap=overlap,
    )
    for name in "123":
        engine.submit(request(name, prompt(int(name), 16), max_tokens=4))
    engine.step()
    engine.submit(request("high", prompt(4, 20), max_tokens=3, priority=1))
    engine.run()
    assert [event.request_id for event in engine.preempted] == ["3"]
    assert [event.request_id for event in engine.admitted] == ["1", "2", "3", "high", "3"]


def test_a_request_sent_back_and_admitted_again_in_the_same_pass_has_one_row() -> None:
    engine = Engine(
        config=SchedulerConfig(policy="priority"),
        capacity=capacity_for_tests(num_pages=16, page_size=4),
    )
    big, small, high = prompt(1, 32), prompt(2, 4), prompt(3, 28)
    engine.submit(request("big", big, max_tokens=8))
    engine.submit(request("small", small, max_tokens=8))
    engine.step()
    engine.step()
    engine.submit(request("high", high, max_tokens=4, priority=1))
    plan = engine.step()
    assert plan is not None
    assert [event.request_id for event in engine.preempted] == ["small", "big"]
    assert [event.request_id for event in engine.admitted[2:]] == ["high", "small"]
    assert len(set(plan.seats)) == len(plan.seats)
    answers = engine.run()
    for name, ids in {"big": big, "small": small}.items():
        assert answers[name].token_ids == reference_tokens(ids, 8)
    assert answers["high"].token_ids == reference_tokens(high, 4)


def full_priority_queue() -> Engine:
    """Waiting, highest priority first served: 3, then two of priority 1; the limit is 3."""
    engine = Engine(config=SchedulerConfig(policy="priority", max_queued=3))
    for name, priority in [("p3 t0", 3), ("p1 t1", 1), ("p1 t2", 1)]:
        engine.submit(request(name, [1, 2, 3], priority=priority))
    return engine


def test_a_full_priority_queue_displaces_the_newest_of_the_worst_priority() -> None:
    engine = full_priority_queue()
    assert engine.submit(request("p2", [1, 2, 3], priority=2)) == Accepted(RequestId("p1 t2"))
    assert {name for name, answer in engine.run().items() if answer.finish} == {"p3 t0", "p1 t1", "p2"}


def test_a_full_priority_queue_refuses_who_is_not_strictly_better() -> None:
    outcome = full_priority_queue().submit(request("p1", [1, 2, 3], priority=1))
    assert isinstance(outcome, Refused)
    assert outcome.reason == "queue_full"
    assert "3 requests wait already and the limit is 3" in outcome.message


def test_when_one_of_four_is_preempted_the_other_three_get_a_token_every_step() -> None:
    engine = Engine(
        config=SchedulerConfig(policy="fcfs", chunk_tokens=4),
        capacity=capacity_for_tests(num_pages=16, page_size=4, max_seats=4),
    )
    prompts = {name: prompt(int(name), 10) for name in "1234"}
    for name, ids in prompts.items():
        engine.submit(request(name, ids, max_tokens=8))
    while not engine.preempted:
        engine.step()
    assert [event.request_id for event in engine.preempted] == ["4"]
    running = {"1", "2", "3"}
    while all(engine.answers[name].finish is None for name in running):
        before = {name: len(engine.answers[name].token_ids) for name in running}
        engine.step()
        assert {name: len(engine.answers[name].token_ids) for name in running} == {
            name: num + 1 for name, num in before.items()
        }
    engine.run()
    for name, ids in prompts.items():
        assert engine.answers[name].token_ids == reference_tokens(ids, 20)[: len(engine.answers[name].token_ids)]
        assert engine.answers[name].finish == "length"


def test_the_last_sampled_token_leaves_no_kv_and_every_page_is_given_back_once() -> None:
    """The pages of 6 + 5 - 1 positions enter the tree; the step that ran ahead wrote one more, which is
    freed."""
    engine = Engine(
        config=SchedulerConfig(chunk_tokens=4),
        capacity=capacity_for_tests(num_pages=32, page_size=1),
        overlap=True,
    )
    engine.submit(request("a", prompt(1, 6), max_tokens=5))
    engine.run()
    counts = engine.cache.counts()
    assert (counts.evictable, counts.free, counts.owned, counts.protected) == (10, 22, 0, 0)


def test_siblings_of_one_call_hit_no_more_than_one_copy_of_the_prompt() -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=64, page_size=16), partial_pages=False)
    ids = prompt(1, 33)
    for call in ("cold", "warm"):
        for sibling in range(4):
            engine.submit(request(f"{call} {sibling}", ids, max_tokens=2))
        engine.run()
    assert engine.answers["cold 0"].num_cached_tokens == 0
    assert engine.answers["warm 0"].num_cached_tokens == 32
    assert all((answer.num_cached_tokens or 0) <= len(ids) for answer in engine.answers.values())


@pytest.mark.parametrize(
    ("page_size", "partial_pages", "num_cached"),
    [(1, True, 39), (16, True, 39), (1, False, 39), (16, False, 32)],
)
def test_a_prompt_is_matched_whole_before_it_is_cut_into_chunks(
    page_size: int, partial_pages: bool, num_cached: int
) -> None:
    engine = Engine(
        config=SchedulerConfig(chunk_tokens=16),
        capacity=capacity_for_tests(num_pages=256 // page_size, page_size=page_size),
        partial_pages=partial_pages,
    )
    for name, num_computed in (("cold", 40), ("warm", 40 - num_cached)):
        before = engine.executor.num_tokens_computed
        engine.submit(request(name, prompt(1, 40), max_tokens=1))
        engine.run()
        assert engine.executor.num_tokens_computed - before == num_computed
        assert engine.answers[name].num_cached_tokens == 40 - num_computed


@pytest.mark.parametrize("overlap", [False, True])
def test_chunks_that_an_aborted_prompt_left_in_the_tree_are_reused_unharmed(overlap: bool) -> None:
    engine = Engine(
        config=SchedulerConfig(chunk_tokens=8),
        capacity=capacity_for_tests(num_pages=8, page_size=4),
        overlap=overlap,
    )
    first, other = prompt(1, 24), prompt(2, 28)
    engine.submit(request("aborted", first, max_tokens=4))
    for _ in range(2):
        engine.step()
    engine.abort("aborted")
    engine.run()
    for name, ids in (("again", first), ("other", other), ("again later", first)):
        engine.submit(request(name, ids, max_tokens=4))
        engine.run()
        assert engine.answers[name].token_ids == reference_tokens(ids, 4)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_that_computed_a_cached_prefix_once_more_reads_the_tree_and_frees_its_own(
    overlap: bool,
) -> None:
    """Two requests compute the same prefix side by side; the second one's page table is repointed at its
    insert."""
    engine = Engine(
        config=SchedulerConfig(policy="fcfs", chunk_tokens=4, max_overtaken=0),
        capacity=capacity_for_tests(num_pages=32, page_size=1),
        overlap=overlap,
    )
    shared = prompt(1, 4)
    engine.submit(request("1", [*shared, 5, 6, 7], max_tokens=9))
    engine.submit(request("2", [*shared, 8, 9, 10], max_tokens=9))
    for _ in range(4):
        engine.step()
    assert engine.executor.page_table(0)[:4] == engine.executor.page_table(1)[:4]
    answers = engine.run()
    assert answers["1"].token_ids == reference_tokens([*shared, 5, 6, 7], 9)
    assert answers["2"].token_ids == reference_tokens([*shared, 8, 9, 10], 9)
