"""Drives a real scheduler over a real prefix cache with the fake executor, one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from support_fake_executor import FakeExecutor, TokenOverride, capacity_for_tests

from sapwood_engine.core.admission import Accepted, Refused, SchedulerConfig
from sapwood_engine.core.eviction import PolicyName
from sapwood_engine.core.keys import KeyUnit
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import (
    ContentSpan,
    FinishReason,
    Namespace,
    Request,
    RequestId,
    SamplingParams,
    StopRules,
    TokenLogprobs,
    TokenOutput,
)
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.core.step import Admitted, Preempted, StepPlan
from sapwood_engine.errors import StepFailed

NAMESPACE = Namespace("model")


def request(
    name: str,
    prompt: Sequence[int],
    *,
    max_tokens: int = 4,
    min_tokens: int = 0,
    stop_token_ids: frozenset[int] = frozenset(),
    priority: int = 0,
    routing_key: str | None = None,
    namespace: Namespace = NAMESPACE,
    sampling: SamplingParams | None = None,
    content: tuple[ContentSpan, ...] = (),
    cache_pin_seconds: float = 0.0,
) -> Request:
    """A greedy request; every field may be set."""
    return Request(
        RequestId(name),
        namespace,
        tuple(prompt),
        sampling or SamplingParams(seed=0, temperature=0.0),
        StopRules(max_tokens, min_tokens, stop_token_ids),
        priority,
        routing_key,
        cache_pin_seconds,
        content,
    )


@dataclass(slots=True)
class Answer:
    """What a request got, outputs joined."""

    token_ids: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    num_cached_tokens: int | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    num_outputs: int = 0


class Engine:
    """Scheduler, cache, executor and a clock that moves one second a step.

    After every call the invariants are checked.
    """

    def __init__(
        self,
        *,
        config: SchedulerConfig | None = None,
        capacity: Capacity | None = None,
        cache: PrefixCache | None = None,
        prefix_cache: bool = True,
        partial_pages: bool = True,
        key_unit: KeyUnit = "tokens",
        content: bool = False,
        quota_tokens: int | None = None,
        eviction: PolicyName = "lru",
        overlap: bool = False,
        override: TokenOverride | None = None,
        fail_launches: frozenset[int] = frozenset(),
        seconds_per_token: float = 0.0,
    ) -> None:
        self.capacity = capacity or capacity_for_tests()
        self.cache = cache or PrefixCache(
            num_pages=self.capacity.num_pages,
            page_size=self.capacity.page_size,
            policy=eviction,
            enabled=prefix_cache,
            partial_pages=partial_pages,
            key_unit=key_unit,
            content=content,
            quota_tokens=quota_tokens,
        )
        self.executor = FakeExecutor(
            self.capacity, override=override, fail_launches=fail_launches, seconds_per_token=seconds_per_token
        )
        self.scheduler = Scheduler(config or SchedulerConfig(policy="fcfs"), self.capacity, self.cache)
        self.overlap = overlap
        self.now = 0.0
        self.answers: dict[str, Answer] = {}
        self.admitted: list[Admitted] = []
        self.preempted: list[Preempted] = []
        self.in_flight: list[StepPlan] = []

    def submit(self, new: Request) -> Accepted | Refused:
        """Submit at the current time; an accepted request gets an `Answer`."""
        outcome = self.scheduler.submit(new, self.now)
        if isinstance(outcome, Accepted):
            self.answers[new.request_id] = Answer()
        self.check()
        return outcome

    def abort(self, name: str) -> None:
        output = self.scheduler.abort(RequestId(name))
        if output is not None:
            self._note([output])
        self.check()

    def plan(self) -> StepPlan | None:
        """Plan and launch one step."""
        self.now += 1.0
        plan = self.scheduler.plan(self.now)
        if plan is None:
            assert self.in_flight or not self.scheduler.has_work(), "work, nothing in flight, and no plan"
        else:
            self.executor.launch(plan)
            self.in_flight.append(plan)
            self.admitted += [event for event in plan.events if isinstance(event, Admitted)]
            self.preempted += [event for event in plan.events if isinstance(event, Preempted)]
        self.check()
        return plan

    def settle(self) -> list[TokenOutput]:
        """Collect the oldest launched step and commit it, or fail it."""
        plan = self.in_flight.pop(0)
        try:
            result = self.executor.collect()
        except StepFailed:
            outputs = self.scheduler.fail(plan.step_id)
        else:
            outputs = self.scheduler.commit(result)
        self._note(outputs)
        self.check()
        return outputs

    def step(self) -> StepPlan | None:
        """One turn of an engine's loop: with overlap a step stays in flight."""
        if len(self.in_flight) == 2:
            self.settle()
        plan = self.plan()
        if self.in_flight and (len(self.in_flight) == 2 or not self.overlap or plan is None):
            self.settle()
        return plan

    def run(self, *, max_steps: int = 2000) -> dict[str, Answer]:
        """Step until nothing is left to do; more than ``max_steps`` is a failure."""
        for _ in range(max_steps):
            if not self.scheduler.has_work():
                return self.answers
            self.step()
        raise AssertionError(f"still working after {max_steps} steps")

    def check(self) -> None:
        assert self.scheduler.check_invariants() == []

    def _note(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            answer = self.answers[output.request_id]
            assert answer.finish is None, f"{output.request_id} gets output after its end"
            answer.token_ids += output.token_ids
            answer.finish = output.finish
            answer.logprobs += output.logprobs
            if answer.num_outputs == 0:
                answer.num_cached_tokens = output.num_cached_tokens
                answer.prompt_logprobs = output.prompt_logprobs
            answer.num_outputs += 1
