"""A machine that submits, warms, aborts, plans, settles, fails and flushes in any order, on pools too small for
comfort.

The naive model is `reference_tokens`: whatever happened, a request that ends normally has exactly the
tokens that an engine without cache, chunks, overlap, preemption or batch produces; one that was cut short
has a beginning of them.
"""

from __future__ import annotations

from typing import get_args

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support_fake_executor import capacity_for_tests, reference_tokens
from support_scheduling import NAMESPACE, Engine, request

from sapwood_contract.launch import EvictionPolicyName, SchedulerPolicy
from sapwood_engine.core.admission import Accepted, SchedulerConfig, max_output
from sapwood_engine.core.keys import KeyUnit
from sapwood_engine.core.request import Namespace, Request, SamplingParams
from sapwood_engine.core.warming import WarmPrefix

VOCABULARY = 3
"""So few tokens that prompts share prefixes and outputs run into other prompts."""

NAMESPACES = (NAMESPACE, Namespace("model", extra_key="other"))


class SchedulerMachine(RuleBasedStateMachine):
    """Two steps at most are in flight; settling takes the oldest."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, Request] = {}
        self.engine: Engine

    @initialize(
        policy=st.sampled_from(get_args(SchedulerPolicy)),
        eviction=st.sampled_from(get_args(EvictionPolicyName)),
        num_pages=st.integers(3, 20),
        page_size=st.sampled_from([1, 2, 4]),
        max_seats=st.integers(1, 4),
        max_step_tokens=st.integers(4, 24),
        chunk_tokens=st.integers(1, 12),
        itl_target_seconds=st.sampled_from([0.001, 0.1]),
        seconds_per_token=st.sampled_from([0.0, 0.01]),
        max_overtaken=st.integers(0, 6),
        max_queued=st.integers(2, 8),
        prefix_cache=st.booleans(),
        partial_pages=st.booleans(),
        key_unit=st.sampled_from(get_args(KeyUnit)),
        content=st.booleans(),
        quota_tokens=st.none() | st.integers(0, 24),
        fail_launches=st.frozensets(st.integers(0, 40), max_size=3),
    )
    def start(
        self,
        policy: SchedulerPolicy,
        eviction: EvictionPolicyName,
        num_pages: int,
        page_size: int,
        max_seats: int,
        max_step_tokens: int,
        chunk_tokens: int,
        itl_target_seconds: float,
        seconds_per_token: float,
        max_overtaken: int,
        max_queued: int,
        prefix_cache: bool,
        partial_pages: bool,
        key_unit: KeyUnit,
        content: bool,
        quota_tokens: int | None,
        fail_launches: frozenset[int],
    ) -> None:
        self.engine = Engine(
            config=SchedulerConfig(
                policy=policy,
                chunk_tokens=chunk_tokens,
                itl_target_seconds=itl_target_seconds,
                max_overtaken=max_overtaken,
                max_queued=max_queued,
                min_shared_tokens=2,
                headroom_tokens=4,
            ),
            capacity=capacity_for_tests(
                num_pages=num_pages,
                page_size=page_size,
                max_seats=max_seats,
                max_step_tokens=max_step_tokens,
                vocab_size=VOCABULARY,
            ),
            prefix_cache=prefix_cache,
            partial_pages=partial_pages,
            key_unit=key_unit,
            content=content,
            quota_tokens=quota_tokens,
            eviction=eviction,
            overlap=True,
            fail_launches=fail_launches,
            seconds_per_token=seconds_per_token,
        )

    @rule(
        prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30),
        max_tokens=st.integers(1, 20),
        min_tokens=st.integers(0, 3),
        stops=st.frozensets(st.integers(0, VOCABULARY - 1), max_size=1),
        priority=st.integers(0, 2),
        namespace=st.sampled_from(NAMESPACES),
        seed=st.none() | st.integers(0, 3),
        penalty=st.sampled_from([0.0, 0.5]),
        num_prompt_logprobs=st.sampled_from([None, None, None, 0]),
        cache_pin_seconds=st.sampled_from([0.0, 3.0, 60.0]),
    )
    def submit(
        self,
        prompt: list[int],
        max_tokens: int,
        min_tokens: int,
        stops: frozenset[int],
        priority: int,
        namespace: Namespace,
        seed: int | None,
        penalty: float,
        num_prompt_logprobs: int | None,
        cache_pin_seconds: float,
    ) -> None:
        name = str(len(self.requests))
        sampling = SamplingParams(
            seed=seed or 0,
            temperature=0.0 if seed is None else 1.0,
            presence_penalty=penalty,
            num_prompt_logprobs=num_prompt_logprobs,
        )
        new = request(
            name,
            prompt,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=stops,
            priority=priority,
            routing_key=str(priority),
            namespace=namespace,
            sampling=sampling,
            cache_pin_seconds=cache_pin_seconds,
        )
        self._submit(name, new)

    @precondition(lambda self: bool(self.requests))
    @rule(data=st.data(), more=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4))
    def submit_next_turn(self, data: st.DataObject, more: list[int]) -> None:
        """A prompt that continues what another request has so far."""
        earlier = data.draw(st.sampled_from(sorted(self.requests)))
        prompt = [*self.requests[earlier].prompt_ids, *self.engine.answers[earlier].token_ids, *more]
        name = str(len(self.requests))
        self._submit(name, request(name, prompt, max_tokens=6))

    def _submit(self, name: str, new: Request) -> None:
        outcome = self.engine.submit(new)
        if isinstance(outcome, Accepted):
            self.requests[name] = new
            if outcome.displaced is not None:
                del self.requests[outcome.displaced]

    @precondition(lambda self: bool(self.requests))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.engine.abort(data.draw(st.sampled_from(sorted(self.requests))))

    @precondition(lambda self: len(self.engine.in_flight) < 2)
    @rule()
    def plan(self) -> None:
        self.engine.plan()

    @precondition(lambda self: bool(self.engine.in_flight))
    @rule()
    def settle(self) -> None:
        self.engine.settle()

    @rule(
        prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30),
        namespace=st.sampled_from(NAMESPACES),
        uses=st.floats(0, 9),
    )
    def warm(self, prompt: list[int], namespace: Namespace, uses: float) -> None:
        """Whatever is computed unasked, no answer is another for it."""
        self.engine.scheduler.warm([WarmPrefix(namespace, tuple(prompt), uses * len(prompt))], self.engine.now)
        self.engine.check()

    @rule()
    def stop_warming(self) -> None:
        self.engine.scheduler.stop_warming()
        self.engine.check()

    @rule(num_steps=st.integers(1, 20), overlap=st.booleans())
    def run_a_while(self, num_steps: int, overlap: bool) -> None:
        self.engine.overlap = overlap
        for _ in range(num_steps):
            self.engine.step()

    @rule(namespace=st.sampled_from([None, *NAMESPACES]))
    def flush(self, namespace: Namespace | None) -> None:
        self.engine.cache.flush(namespace)
        self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        # Liveness: alone and without the cache a request takes fewer steps than it has tokens.
        num_tokens = sum(len(r.prompt_ids) + r.stop.max_tokens for r in self.requests.values())
        num_tokens += 30 * engine.scheduler.warm_counts().num_waiting
        engine.run(max_steps=20 * num_tokens + 100)
        counts = engine.cache.counts()
        assert (counts.owned, counts.protected) == (0, 0)
        for name, asked in self.requests.items():
            self._check_answer(name, asked)

    def _check_answer(self, name: str, asked: Request) -> None:
        answer = self.engine.answers[name]
        limit = max_output(asked, self.engine.capacity)
        assert isinstance(limit, int)
        expected = reference_tokens(
            asked.prompt_ids,
            limit,
            sampling=asked.sampling,
            stop_token_ids=asked.stop.stop_token_ids,
            min_tokens=asked.stop.min_tokens,
            vocab_size=VOCABULARY,
        )
        if answer.finish in ("stop", "length"):
            assert answer.token_ids == expected
            assert (answer.finish == "stop") == (
                expected[-1] in asked.stop.stop_token_ids and len(expected) > asked.stop.min_tokens
            )
            assert answer.num_cached_tokens is not None
            assert 0 <= answer.num_cached_tokens < len(asked.prompt_ids)
            if asked.sampling.num_prompt_logprobs is not None:
                assert answer.prompt_logprobs is not None
                assert [each.token_id for each in answer.prompt_logprobs] == list(asked.prompt_ids[1:])
        else:
            assert answer.finish in ("abort", "error")
            assert answer.token_ids == expected[: len(answer.token_ids)]


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
