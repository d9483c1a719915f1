"""The scheduler over a real prefix cache and an executor that notices every wrong page."""

from __future__ import annotations

import itertools
import random

import pytest
from support_fake_executor import capacity_for_tests, fake_logprob, reference_tokens
from support_scheduling import NAMESPACE, Engine, request

from sapwood_contract.launch import SchedulerPolicy
from sapwood_engine.core.admission import Refused, SchedulerConfig
from sapwood_engine.core.request import Namespace, RequestId, SamplingParams
from sapwood_engine.core.step import NO_TOKEN, PENDING_TOKEN, Admitted

GREEDY = SamplingParams(seed=0, temperature=0.0)


def prompt(first: int, num_tokens: int) -> list[int]:
    """Tokens that no prompt of another ``first`` shares."""
    return [first * 1000 + i for i in range(num_tokens)]


# --- the same answers, whatever is on


def mixed_requests() -> dict[str, tuple[list[int], SamplingParams]]:
    """Shared prefixes, unshared ones, repeats; greedy, seeded, and with a penalty."""
    rng = random.Random(7)
    system = prompt(1, 21)
    requests = {}
    for index in range(14):
        ids = [*(system if index % 3 else []), *(rng.randrange(50) for _ in range(rng.randint(1, 25)))]
        sampling = SamplingParams(
            seed=index, temperature=float(index % 2), frequency_penalty=0.5 if index % 5 == 0 else 0.0
        )
        requests[str(index)] = (ids, sampling)
    requests["repeat"] = requests["1"]
    return requests


OPTIONS = ("prefix_cache", "chunking", "overlap", "roomy", "batching", "partial_pages")


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("off", [frozenset(o) for n in range(3) for o in itertools.combinations(OPTIONS, n)])
def test_outputs_do_not_depend_on_any_optimisation(off: frozenset[str], page_size: int) -> None:
    engine = Engine(
        config=SchedulerConfig(policy="sapwood", chunk_tokens=8 if "chunking" not in off else 1000),
        capacity=capacity_for_tests(
            num_pages=(1024 if "roomy" not in off else 64) // page_size,
            page_size=page_size,
            max_seats=8 if "batching" not in off else 1,
        ),
        prefix_cache="prefix_cache" not in off,
        partial_pages="partial_pages" not in off,
        overlap="overlap" not in off,
    )
    requests = mixed_requests()
    for name, (ids, sampling) in requests.items():
        engine.submit(request(name, ids, max_tokens=12, sampling=sampling))
    engine.run()
    for name, (ids, sampling) in requests.items():
        assert engine.answers[name].token_ids == reference_tokens(ids, 12, sampling=sampling)
    if off == {"roomy"}:
        assert engine.preempted, "the small pool was to force preemption"


# --- steps


def test_several_prompts_are_prefilled_at_once_a_chunk_each_a_step() -> None:
    engine = Engine(config=SchedulerConfig(policy="fcfs", chunk_tokens=8))
    for name in "123":
        engine.submit(request(name, prompt(int(name), 20)))
    plan = engine.step()
    assert plan is not None
    assert (plan.kind, plan.lengths, plan.samples) == ("prefill", [8, 8, 8], [False] * 3)


def test_decodes_come_first_and_prefills_share_what_is_left_of_the_step() -> None:
    engine = Engine(
        config=SchedulerConfig(policy="fcfs", chunk_tokens=8),
        capacity=capacity_for_tests(max_step_tokens=12),
    )
    engine.submit(request("old", prompt(1, 5), max_tokens=20))
    engine.step()
    engine.submit(request("2", prompt(2, 30)))
    engine.submit(request("3", prompt(3, 30)))
    plan = engine.step()
    assert plan is not None
    assert (plan.kind, plan.lengths) == ("mixed", [1, 8, 3])
    assert plan.starts == [5, 0, 0]
    plan = engine.step()
    assert plan is not None
    assert (plan.starts, plan.lengths) == ([6, 8, 3], [1, 8, 3])


def test_a_step_planned_ahead_holds_pending_tokens_and_nothing_for_who_ends_by_length() -> None:
    engine = Engine(overlap=True)
    engine.submit(request("one", prompt(1, 5), max_tokens=1))
    engine.submit(request("three", prompt(2, 5), max_tokens=3))
    engine.plan()
    plan = engine.plan()
    assert plan is not None
    assert plan.token_ids == [PENDING_TOKEN]
    engine.settle()
    assert engine.answers["one"].finish == "length"
    engine.run()
    assert engine.answers["three"].token_ids == reference_tokens(prompt(2, 5), 3)


@pytest.mark.parametrize("overlap", [False, True])
def test_what_was_computed_behind_a_stop_token_is_discarded(overlap: bool) -> None:
    ids = prompt(1, 9)
    tokens = reference_tokens(ids, 10)
    engine = Engine(overlap=overlap)
    engine.submit(request("a", ids, max_tokens=10, stop_token_ids=frozenset({tokens[4]})))
    answer = engine.run()["a"]
    assert (answer.token_ids, answer.finish) == (tokens[:5], "stop")
    # The stop token itself has no KV: 9 + 5 - 1 tokens can be hit by a conversation that goes on.
    engine.submit(request("next", [*ids, *tokens[:5], 1, 2]))
    assert engine.run()["next"].num_cached_tokens == 9 + 4


@pytest.mark.parametrize("overlap", [False, True])
def test_stop_tokens_are_suppressed_until_min_tokens(overlap: bool) -> None:
    ids = prompt(1, 6)
    first = reference_tokens(ids, 1)[0]
    engine = Engine(overlap=overlap)
    stops = frozenset({first})
    engine.submit(request("a", ids, max_tokens=6, min_tokens=3, stop_token_ids=stops))
    answer = engine.run()["a"]
    assert answer.token_ids == reference_tokens(ids, 6, min_tokens=3, stop_token_ids=stops)
    assert first not in answer.token_ids[:3]


def test_a_request_ends_with_length_where_the_context_ends() -> None:
    engine = Engine(capacity=capacity_for_tests(max_context_tokens=12))
    engine.submit(request("a", prompt(1, 10), max_tokens=100))
    answer = engine.run()["a"]
    assert (len(answer.token_ids), answer.finish) == (2, "length")


# --- sharing


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("overlap", [False, True])
def test_requests_that_arrive_together_compute_a_shared_prefix_once(page_size: int, overlap: bool) -> None:
    engine = Engine(
        config=SchedulerConfig(policy="fcfs", chunk_tokens=16),
        capacity=capacity_for_tests(num_pages=512 // page_size, page_size=page_size, max_step_tokens=256),
        overlap=overlap,
    )
    shared = prompt(1, 48)
    for index in range(5):
        engine.submit(request(str(index), [*shared, 100 + index, 200 + index], max_tokens=1))
    engine.run()
    assert engine.executor.num_tokens_computed == 50 + 4 * 2
    assert [answer.num_cached_tokens for answer in engine.answers.values()] == [0, 48, 48, 48, 48]


def test_an_unrelated_request_passes_those_held_back_for_sharing() -> None:
    engine = Engine(config=SchedulerConfig(policy="fcfs", chunk_tokens=16))
    shared = prompt(1, 48)
    engine.submit(request("leader", [*shared, 1]))
    engine.submit(request("held", [*shared, 2]))
    engine.submit(request("unrelated", prompt(3, 8)))
    engine.step()
    assert [event.request_id for event in engine.admitted] == ["leader", "unrelated"]


def test_a_request_is_admitted_as_soon_as_what_it_shares_is_computed() -> None:
    """The leader goes on with its own long rest; nobody waits for that."""
    engine = Engine(config=SchedulerConfig(policy="fcfs", chunk_tokens=16))
    shared = prompt(1, 32)
    engine.submit(request("leader", [*shared, *prompt(2, 100)]))
    engine.submit(request("held", [*shared, *prompt(3, 4)]))
    for _ in range(3):
        engine.step()
    assert [(e.request_id, e.num_cached_tokens) for e in engine.admitted] == [("leader", 0), ("held", 32)]


def test_an_overdue_request_is_not_held_back() -> None:
    engine = Engine(config=SchedulerConfig(policy="fcfs", chunk_tokens=16, max_overtaken=0))
    shared = prompt(1, 48)
    for name in ("leader", "overdue"):
        engine.submit(request(name, shared))
    engine.step()
    assert len(engine.admitted) == 2


def test_a_prefix_is_not_shared_across_namespaces() -> None:
    engine = Engine()
    for index, namespace in enumerate([NAMESPACE, Namespace("model", tenant_salt="x"), Namespace("other")]):
        engine.submit(request(str(index), prompt(1, 40), namespace=namespace))
        engine.run()
    assert [answer.num_cached_tokens for answer in engine.answers.values()] == [0, 0, 0]


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_an_exact_repeat_computes_one_token_at_every_page_size(page_size: int) -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=512 // page_size, page_size=page_size))
    for name in ("first", "again", "and again"):
        engine.submit(request(name, prompt(1, 100), max_tokens=3))
        engine.run()
    assert [answer.num_cached_tokens for answer in engine.answers.values()] == [0, 99, 99]
    assert len({tuple(answer.token_ids) for answer in engine.answers.values()}) == 1


# --- room


def test_admission_passes_over_a_request_that_does_not_fit_now() -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=16, page_size=4))
    engine.submit(request("running", prompt(1, 36), max_tokens=20))
    engine.submit(request("large", prompt(2, 40)))
    engine.submit(request("small", prompt(3, 4)))
    engine.step()
    assert [event.request_id for event in engine.admitted] == ["running", "small"]


def test_a_request_that_never_seems_to_fit_is_passed_over_a_bounded_number_of_times() -> None:
    engine = Engine(
        config=SchedulerConfig(policy="fcfs", max_overtaken=5),
        capacity=capacity_for_tests(num_pages=16, page_size=4, max_seats=3),
    )
    engine.submit(request("0", prompt(10, 4), max_tokens=8))
    engine.step()
    engine.submit(request("large", prompt(2, 60), max_tokens=2))
    for number in range(1, 100):
        engine.submit(request(str(number), prompt(10 + number, 4), max_tokens=8))
        engine.step()
        if engine.admitted[-1].request_id == "large":
            break
    passed = [event.request_id for event in engine.admitted]
    assert passed.index(RequestId("large")) <= 1 + 5


def test_a_preempted_request_resumes_from_the_tree_and_its_caller_sees_no_hit() -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=12, page_size=4))
    prompts = {name: prompt(int(name), 14) for name in "12"}
    for name, ids in prompts.items():
        engine.submit(request(name, ids, max_tokens=20))
    engine.run()
    assert [(event.request_id, event.reason) for event in engine.preempted] == [("2", "kv_full")]
    resumed = [event for event in engine.admitted if event.resumed]
    assert [(event.request_id, event.num_cached_tokens) for event in resumed] == [("2", 0)]
    assert resumed[0].num_recomputed_tokens < engine.preempted[0].num_tokens
    for name, ids in prompts.items():
        assert engine.answers[name].token_ids == reference_tokens(ids, 20)
        assert engine.answers[name].num_cached_tokens == 0


def test_a_preempted_request_comes_back_only_when_the_others_have_room_to_go_on() -> None:
    """Without headroom it would come back at once, be sent back at the next page, and so on."""
    engine = Engine(
        config=SchedulerConfig(policy="fcfs", headroom_tokens=16),
        capacity=capacity_for_tests(num_pages=24, page_size=1),
    )
    for name in "123":
        engine.submit(request(name, prompt(int(name), 4), max_tokens=12))
    engine.run()
    assert 1 <= len(engine.preempted) <= 3


def test_the_oldest_request_is_never_sent_back_for_lack_of_kv() -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=10, page_size=2), overlap=True)
    for index in range(6):
        engine.submit(request(str(index), prompt(index + 1, 3), max_tokens=15))
    engine.run()
    assert engine.preempted
    assert all(event.request_id != "0" for event in engine.preempted)


def test_a_request_sent_back_for_priority_often_enough_is_left_alone() -> None:
    engine = Engine(
        config=SchedulerConfig(policy="priority", max_priority_preemptions=2, max_running=1),
        capacity=capacity_for_tests(),
    )
    engine.submit(request("low", prompt(1, 6), max_tokens=6))
    engine.step()
    for number in range(5):
        engine.submit(request(f"high {number}", prompt(number + 2, 3), max_tokens=1, priority=9))
        engine.step()
        engine.step()
    engine.run()
    assert sum(event.request_id == "low" for event in engine.preempted) == 2


@pytest.mark.parametrize("policy", ["fcfs", "sapwood", "lpm"])
def test_other_policies_do_not_preempt_for_priority(policy: SchedulerPolicy) -> None:
    engine = Engine(config=SchedulerConfig(policy=policy, max_running=1))
    engine.submit(request("low", prompt(1, 6), max_tokens=6))
    engine.step()
    engine.submit(request("high", prompt(2, 6), priority=9))
    engine.run()
    assert not engine.preempted


# --- the door and the ways out


def test_an_id_that_is_here_already_is_refused_and_free_again_after_its_end() -> None:
    engine = Engine()
    engine.submit(request("a", [1, 2]))
    outcome = engine.submit(request("a", [3, 4]))
    assert isinstance(outcome, Refused)
    assert outcome.reason == "duplicate_id"
    engine.run()
    assert not isinstance(engine.submit(request("a", [5, 6])), Refused)


def test_a_full_queue_refuses_with_both_numbers() -> None:
    engine = Engine(config=SchedulerConfig(policy="fcfs", max_queued=2))
    for name in "12":
        engine.submit(request(name, [1]))
    outcome = engine.submit(request("3", [1]))
    assert outcome == Refused("queue_full", "2 requests wait already and the limit is 2.")


def abort_in_turn(engine: Engine, num_calls: int) -> None:
    """Abort request ``a`` after ``num_calls`` calls of plan and settle, with a step ahead where overlap is
    on."""
    calls = itertools.cycle([engine.plan, engine.plan, engine.settle] if engine.overlap else [engine.step])
    for call in itertools.islice(calls, num_calls):
        if call == engine.plan and len(engine.in_flight) == 2:
            engine.settle()
        call()
    engine.abort("a")


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("num_calls", range(12))
def test_an_abort_at_any_stage_ends_one_request_and_harms_nobody(num_calls: int, overlap: bool) -> None:
    engine = Engine(
        config=SchedulerConfig(policy="fcfs", chunk_tokens=4),
        capacity=capacity_for_tests(num_pages=16, page_size=4),
        overlap=overlap,
    )
    shared = prompt(1, 9)
    engine.submit(request("a", [*shared, 1, 2], max_tokens=30))
    engine.submit(request("b", [*shared, 3, 4], max_tokens=10))
    abort_in_turn(engine, num_calls)
    engine.abort("a")
    engine.abort("a-not-this-one")
    engine.run()
    assert engine.answers["a"].finish == "abort"
    assert engine.answers["b"].token_ids == reference_tokens([*shared, 3, 4], 10)
    counts = engine.cache.counts()
    assert (counts.owned, counts.protected) == (0, 0)
    engine.submit(request("a", [*shared, 1, 2], max_tokens=6))
    assert engine.run()["a"].token_ids == reference_tokens([*shared, 1, 2], 6)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("number", range(10))
def test_a_failed_step_ends_its_requests_and_leaves_the_cache_sound(number: int, overlap: bool) -> None:
    engine = Engine(
        config=SchedulerConfig(policy="fcfs", chunk_tokens=6),
        capacity=capacity_for_tests(num_pages=24, page_size=4, max_seats=2),
        overlap=overlap,
        fail_launches=frozenset({number}),
    )
    shared = prompt(1, 10)
    requests = {str(index): [*shared, index, index] for index in range(5)}
    for name, ids in requests.items():
        engine.submit(request(name, ids, max_tokens=5))
    engine.run()
    failed = [name for name, answer in engine.answers.items() if answer.finish == "error"]
    assert 1 <= len(failed) <= 2
    for name in failed:
        engine.submit(request(name, requests[name], max_tokens=5))
    engine.run()
    for name, ids in requests.items():
        assert engine.answers[name].token_ids == reference_tokens(ids, 5)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("num_tokens", range(4))
def test_a_request_whose_token_cannot_be_drawn_ends_alone(num_tokens: int, overlap: bool) -> None:
    """It gets what was drawn before, and nothing of what it computed can be found."""
    spoilt, sound = prompt(1, 10), prompt(2, 10)

    def override(known: tuple[int, ...]) -> int | None:
        return NO_TOKEN if list(known[:10]) == spoilt and len(known) == 10 + num_tokens else None

    engine = Engine(config=SchedulerConfig(policy="fcfs", chunk_tokens=6), overlap=overlap, override=override)
    for name, ids in (("bad", spoilt), ("good", sound)):
        engine.submit(request(name, ids, max_tokens=6))
    answers = engine.run()
    assert (answers["bad"].finish, answers["bad"].token_ids) == ("error", reference_tokens(spoilt, num_tokens))
    assert (answers["good"].finish, answers["good"].token_ids) == ("length", reference_tokens(sound, 6))
    counts = engine.cache.counts()
    assert (counts.owned, counts.protected) == (0, 0)


def test_what_a_row_computed_whose_token_cannot_be_drawn_is_not_in_the_cache() -> None:
    engine = Engine(override=lambda _: NO_TOKEN)
    for name in ("first", "second"):
        engine.submit(request(name, prompt(1, 10)))
        assert engine.run()[name].finish == "error"
    assert engine.answers["second"].num_cached_tokens == 0
    assert engine.cache.num_nodes == 0


# --- log-probabilities


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk_tokens", [3, 64])
def test_prompt_logprobs_cover_the_prompt_and_skip_reuse(chunk_tokens: int, overlap: bool) -> None:
    engine = Engine(config=SchedulerConfig(policy="fcfs", chunk_tokens=chunk_tokens), overlap=overlap)
    ids = prompt(1, 10)
    engine.submit(request("warm", ids))
    engine.run()
    sampling = SamplingParams(seed=0, temperature=0.0, num_logprobs=0, num_prompt_logprobs=0)
    engine.submit(request("a", ids, max_tokens=3, sampling=sampling))
    answer = engine.run()["a"]
    assert answer.num_cached_tokens == 0
    assert answer.prompt_logprobs == tuple(fake_logprob(ids[:i], ids[i]) for i in range(1, 10))
    everything = [*ids, *answer.token_ids]
    assert answer.logprobs == [fake_logprob(everything[:i], everything[i]) for i in range(10, 13)]


@pytest.mark.parametrize("num_tokens", [1, 2, 9])
def test_scoring_a_prompt_without_generating_ends_with_its_logprobs(num_tokens: int) -> None:
    engine = Engine(config=SchedulerConfig(policy="fcfs", chunk_tokens=4))
    ids = prompt(1, num_tokens)
    sampling = SamplingParams(seed=0, temperature=0.0, num_prompt_logprobs=0)
    engine.submit(request("a", ids, max_tokens=0, sampling=sampling))
    answer = engine.run()["a"]
    assert (answer.token_ids, answer.finish) == ([], "length")
    assert answer.prompt_logprobs == tuple(fake_logprob(ids[:i], ids[i]) for i in range(1, num_tokens))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_prompt_that_is_neither_continued_nor_scored_is_stored_for_the_next(overlap: bool) -> None:
    engine = Engine(config=SchedulerConfig(policy="fcfs", chunk_tokens=4), overlap=overlap)
    ids = prompt(1, 10)
    for name, num_cached in (("a", 0), ("b", 9)):
        engine.submit(request(name, ids, max_tokens=0))
        answer = engine.run()[name]
        assert (answer.token_ids, answer.finish, answer.prompt_logprobs) == ([], "length", None)
        assert answer.num_cached_tokens == num_cached


def test_what_a_request_stores_has_its_priority_for_eviction() -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=16, page_size=4), eviction="priority")
    engine.submit(request("high", prompt(1, 9), max_tokens=1, priority=7))
    engine.run()
    (space,) = engine.cache.snapshot(max_nodes=10)["namespaces"]
    assert {node["priority"] for node in space["nodes"]} == {7}


# --- what it says of itself


def test_the_load_tells_the_depth_of_the_tree_without_walking_it() -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=64, page_size=4))
    ids = prompt(1, 32)
    for num_tokens in (9, 17, 25):
        engine.submit(request(str(num_tokens), ids[:num_tokens], max_tokens=1))
        engine.run()
    depth = engine.scheduler.load().radix_depth_max
    assert depth == 4  # three times two pages, and the last one's tail
    for other in range(2, 8):
        engine.submit(request(str(other), prompt(other, 4), max_tokens=1))
    engine.run()
    engine.cache.evict(4)  # the oldest: the end of that path
    assert engine.scheduler.load().radix_depth_max == depth
    engine.check()
    assert engine.scheduler.load().radix_depth_max < depth


def test_an_admission_tells_how_long_the_request_waited_and_what_it_hit() -> None:
    engine = Engine(config=SchedulerConfig(policy="fcfs", max_running=1))
    engine.submit(request("first", prompt(1, 8), max_tokens=3))
    engine.submit(request("second", prompt(1, 8), max_tokens=1))
    engine.run()
    assert engine.admitted == [
        Admitted(RequestId("first"), 8, 0, 0, queue_seconds=1.0, resumed=False),
        Admitted(RequestId("second"), 8, 7, 0, queue_seconds=4.0, resumed=False, reuse_gap_seconds=(1.0,)),
    ]


def test_evictions_are_told_with_the_plan_that_caused_them() -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=8, page_size=4))
    engine.submit(request("first", prompt(1, 20), max_tokens=1))
    engine.run()
    engine.submit(request("second", prompt(2, 28), max_tokens=1))
    plan = engine.plan()
    assert plan is not None
    assert [event.num_tokens for event in plan.events if not isinstance(event, Admitted)] == [16]
