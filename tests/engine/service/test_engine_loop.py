"""The worker's loop over scripted messages and a clock of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

import pytest
from support_fake_executor import FakeExecutor, reference_tokens
from support_service import VOCAB_SIZE, options, small_capacity

from sapwood_contract.launch import LaunchOptions
from sapwood_engine.config import engine_config
from sapwood_engine.core.prefill_share import LEAST_CHUNK_TOKENS
from sapwood_engine.core.request import Namespace, Request, RequestId, SamplingParams, StopRules
from sapwood_engine.core.step import StepPlan, StepResult
from sapwood_engine.service.engine_loop import EngineLoop
from sapwood_engine.service.messages import (
    Abort,
    AdminCall,
    AdminReply,
    FromWorker,
    Refused,
    Shutdown,
    Submit,
    TokenBatch,
    ToWorker,
)
from sapwood_engine.service.worker import build_core


class Script:
    """A pipe whose messages come turn by turn, and whose sleeps move the clock: a list of turns, each a
    list.
    """

    def __init__(self, turns: list[list[ToWorker]]) -> None:
        self.now = 0.0
        self.sent: list[FromWorker] = []
        self.sleeps: list[float | None] = []
        self._turns = turns

    def send(self, message: FromWorker) -> None:
        self.sent.append(message)

    def receive_ready(self) -> Iterable[ToWorker]:
        return self._turns.pop(0) if self._turns else []

    def wait(self, seconds: float | None) -> bool:
        """A sleep with an end lasts to its end, so that no message comes then; one without brings the
        next turn.
        """
        self.sleeps.append(seconds)
        if seconds is None:
            return True
        self.now += seconds
        self._turns.insert(0, [])
        return False

    def clock(self) -> float:
        return self.now


def run(
    turns: list[list[ToWorker]],
    *,
    executor: FakeExecutor | None = None,
    overlap: bool = True,
    launch: LaunchOptions | None = None,
) -> Script:
    """Run the loop over ``turns``, the last of which must hold a `Shutdown`."""
    executor = executor or FakeExecutor(small_capacity())
    cache, scheduler = build_core(engine_config(launch or options()), executor.capacity)
    script = Script(turns)
    EngineLoop(
        scheduler=scheduler,
        cache=cache,
        executor=executor,
        channel=script,
        overlap=overlap,
        clock=script.clock,
    ).run()
    assert scheduler.check_invariants() == []
    return script


def submit(name: str, *, max_tokens: int = 4, prompt: bytes = b"a prompt", priority: int = 0) -> Submit:
    return Submit(
        Request(
            RequestId(name),
            Namespace("m"),
            tuple(prompt),
            SamplingParams(seed=0, temperature=0.0),
            StopRules(max_tokens=max_tokens),
            priority=priority,
        )
    )


def tokens(script: Script, name: str) -> list[int]:
    batches = [message for message in script.sent if isinstance(message, TokenBatch)]
    return [t for batch in batches for delta in batch.deltas if delta.request_id == name for t in delta.token_ids]


def finishes(script: Script, name: str) -> list[str]:
    batches = [message for message in script.sent if isinstance(message, TokenBatch)]
    deltas = [delta for batch in batches for delta in batch.deltas if delta.request_id == name]
    return [delta.finish for delta in deltas if delta.finish is not None]


def test_what_was_submitted_before_a_shutdown_is_still_answered() -> None:
    script = run([[submit("r", max_tokens=5), Shutdown()]])
    assert tokens(script, "r") == reference_tokens(b"a prompt", 5, vocab_size=VOCAB_SIZE)
    assert finishes(script, "r") == ["length"]


def test_a_turn_commits_one_step_and_says_so_in_one_batch() -> None:
    script = run([[submit("a"), submit("b", prompt=b"another"), Shutdown()]])
    steps = [message.step for message in script.sent if isinstance(message, TokenBatch)]
    assert [step.kind for step in steps if step is not None] == ["prefill", "decode", "decode", "decode"]
    assert all(isinstance(message, TokenBatch) for message in script.sent)


def test_a_step_is_planned_while_the_one_before_computes_and_only_with_overlap() -> None:
    for overlap, most in ((True, 2), (False, 1)):
        executor = Watched()
        run([[submit("r", max_tokens=6), Shutdown()]], executor=executor, overlap=overlap)
        assert executor.most_in_flight == most


class Watched(FakeExecutor):
    """Remembers how many steps were in flight at most."""

    def __init__(self) -> None:
        super().__init__(small_capacity())
        self.most_in_flight = 0
        self._num_in_flight = 0

    def launch(self, plan: StepPlan) -> None:
        super().launch(plan)
        self._num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._num_in_flight)

    def collect(self) -> StepResult:
        self._num_in_flight -= 1
        return super().collect()


def test_what_is_prefilled_beside_a_stream_keeps_to_the_target_for_its_tokens() -> None:
    most = {}
    for target in (0.001, 3600.0):
        script = run(
            [[submit("stream", max_tokens=40)], [], [], [], [submit("long", prompt=b"x" * 300), Shutdown()]],
            executor=FakeExecutor(small_capacity(), seconds_per_token=0.01),
            launch=options(chunk_tokens=60, itl_target_seconds=target),
        )
        steps = [message.step for message in script.sent if isinstance(message, TokenBatch)]
        most[target] = max(step.num_tokens for step in steps if step is not None and step.kind == "mixed")
    assert most == {0.001: 1 + LEAST_CHUNK_TOKENS, 3600.0: 1 + 60}


def test_a_debug_line_tells_what_a_step_took_beside_what_was_expected(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="sapwood_engine.service.engine_loop"):
        run([[submit("r"), Shutdown()]], executor=FakeExecutor(small_capacity(), seconds_per_token=0.01), overlap=False)
    expected = [vars(record)["predicted_seconds"] for record in caplog.records]
    assert [vars(record)["seconds"] for record in caplog.records] == [0.08, 0.01, 0.01, 0.01]
    assert expected[0] == 0.0
    assert expected[-1] == pytest.approx(0.01, rel=0.1)


def test_an_abort_of_an_unknown_or_ended_request_says_nothing() -> None:
    script = run([[submit("r", max_tokens=1)], [], [], [Abort("r"), Abort("never was"), Shutdown()]])
    assert finishes(script, "r") == ["length"]


def test_a_request_aborted_in_the_turn_it_came_never_computes() -> None:
    executor = FakeExecutor(small_capacity())
    script = run([[submit("r"), Abort("r"), Shutdown()]], executor=executor)
    assert finishes(script, "r") == ["abort"]
    assert executor.num_launches == 0


def test_a_request_that_loses_its_place_to_a_higher_priority_is_told_that_the_queue_is_full() -> None:
    launch = options(max_running=1, max_queued=1, scheduler_policy="priority")
    script = run([[submit("runs")], [submit("low")], [submit("high", priority=5), Shutdown()]], launch=launch)
    refusals = [message for message in script.sent if isinstance(message, Refused)]
    assert [(refusal.request_id, refusal.reason) for refusal in refusals] == [("low", "queue_full")]
    assert finishes(script, "high") == ["length"]


def test_an_engine_at_rest_sleeps_without_end_once_it_has_checked_itself() -> None:
    script = run([[submit("r")], [], [], [], [], [], [Shutdown()]])
    assert len([sleep for sleep in script.sleeps if sleep is not None]) == 1
    assert script.sleeps[-1] is None
    assert script.now >= 30


def test_an_engine_that_never_worked_sleeps_without_a_check() -> None:
    assert run([[], [Shutdown()]]).sleeps == [None, None]


class Hurried(Script):
    """A script whose clock goes on by some seconds whenever it is read."""

    def clock(self) -> float:
        self.now += 2.0
        return self.now


def test_an_engine_that_never_rests_finds_a_broken_cache_and_serves_on() -> None:
    executor = FakeExecutor(small_capacity())
    cache, scheduler = build_core(engine_config(options()), executor.capacity)
    cache.allocate(1)  # a page that nobody holds
    script = Hurried([[submit("r", max_tokens=300), Shutdown()]])
    EngineLoop(
        scheduler=scheduler, cache=cache, executor=executor, channel=script, overlap=True, clock=script.clock
    ).run()
    told = [message for message in script.sent if isinstance(message, TokenBatch) and message.num_invariant_failures]
    assert told
    assert all(batch.load.num_running == 1 for batch in told)
    assert not cache.enabled
    assert tokens(script, "r") == reference_tokens(b"a prompt", 300, vocab_size=VOCAB_SIZE)


@pytest.mark.parametrize(
    ("fields", "num_tokens"),
    [
        ({}, 22),
        ({"adapter_id": None, "extra_key": None, "tenant_salt": "a"}, 11),
        ({"adapter_id": None, "extra_key": None, "tenant_salt": None}, 11),
        ({"adapter_id": "x", "extra_key": None, "tenant_salt": "a"}, 0),
    ],
)
def test_a_flush_of_an_engine_at_rest_is_counted_before_it_is_answered(
    fields: dict[str, str | None], num_tokens: int
) -> None:
    salted = submit("salted")
    salted = Submit(replace(salted.request, namespace=Namespace("m", tenant_salt="a")))
    idle: list[list[ToWorker]] = [[] for _ in range(6)]
    script = run([[submit("r"), salted], *idle, [AdminCall(1, "flush", fields)], [Shutdown()]])
    (at,) = [index for index, message in enumerate(script.sent) if isinstance(message, AdminReply)]
    assert script.sent[at] == AdminReply(1, {"num_tokens": num_tokens})
    batches = [message for message in script.sent[:at] if isinstance(message, TokenBatch)]
    assert sum(event.num_tokens for batch in batches for event in batch.evicted) == num_tokens


def test_looks_at_the_tree_tell_which_life_of_the_engine_its_serials_are_of() -> None:
    lives = [run([[AdminCall(1, "cache"), AdminCall(2, "cache")], [Shutdown()]]) for _ in range(2)]
    epochs = [[sent.result["epoch"] for sent in life.sent if isinstance(sent, AdminReply)] for life in lives]
    assert [len(set(of_one)) for of_one in epochs] == [1, 1]
    assert epochs[0] != epochs[1]


def test_an_admin_call_is_answered_after_the_load_that_it_saw() -> None:
    script = run([[submit("r", max_tokens=3), AdminCall(7, "check")], [Shutdown()]])
    answer = next(i for i, message in enumerate(script.sent) if isinstance(message, AdminReply))
    before = script.sent[answer - 1]
    assert isinstance(before, TokenBatch)
    assert before.load.num_running == 1


def test_the_capacity_is_told_before_anything_is_asked() -> None:
    (batch,) = run([[Shutdown()]]).sent
    assert isinstance(batch, TokenBatch)
    assert batch.load.kv_free_tokens == batch.load.kv_capacity_tokens == 65_536


def test_an_admin_call_that_cannot_be_done_is_answered_with_why() -> None:
    script = run([[AdminCall(1, "cache", {"max_nodes": "many"}), Shutdown()]])
    replies = [message for message in script.sent if isinstance(message, AdminReply)]
    assert replies[0].error is not None
    assert replies[0].error.startswith("TypeError")
