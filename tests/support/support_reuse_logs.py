"""A log of requests that share beginnings, and what caches of given sizes would hit of it, by serving it to each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from sapwood_engine.core.keys import token_key
from sapwood_engine.core.prefix_cache import PrefixCache, Shortfall
from sapwood_engine.core.request import Namespace, Request, RequestId, SamplingParams, StopRules
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.core.step import Admitted, StepResult


@dataclass(frozen=True, slots=True)
class Logged:
    """One request as it was served."""

    prompt: tuple[int, ...]
    computed: tuple[int, ...]
    """The prompt and the answer but for its last token, which nobody computed KV of."""


def conversation_turns(*, num_conversations: int, turn_tokens: int, seed: int) -> list[tuple[int, list[int]]]:
    """Return who speaks, and what is added, in order: some forty speak at a time, for one to six turns, under one of
    three system prompts.
    """
    random = Random(seed)

    def tokens(number: int) -> list[int]:
        return [random.randrange(1, 1_000) for _ in range(number)]

    systems = [tokens(3 * turn_tokens) for _ in range(3)]
    turns: list[tuple[float, int, list[int]]] = []
    for speaker in range(num_conversations):
        at, added = float(speaker), random.choice(systems) + tokens(random.randint(1, turn_tokens))
        for _ in range(random.randint(1, 6)):
            turns.append((at, speaker, added))
            at, added = at + random.expovariate(1 / 40), tokens(random.randint(1, 2 * turn_tokens))
    return [(speaker, added) for _, speaker, added in sorted(turns)]


@dataclass(slots=True)
class ServedLog:
    """Requests in the order in which they came, and what was told of their admissions."""

    requests: list[Logged]
    admitted: list[Admitted]


def serve_conversations(
    scheduler: Scheduler, turns: Sequence[tuple[int, list[int]]], *, namespace: Namespace, num_at_once: int
) -> ServedLog:
    """Let ``scheduler`` answer ``turns``, so many at once, with tokens drawn by chance; each turn goes on from the
    answer before.
    """
    random = Random(1)
    served = ServedLog([], [])
    history: dict[int, list[int]] = {}
    for first in range(0, len(turns), num_at_once):
        answers: dict[str, list[int]] = {}
        speakers = {}
        for number, (speaker, added) in enumerate(turns[first : first + num_at_once], first):
            history[speaker] = [*history.get(speaker, ()), *added]
            name = str(number)
            answers[name], speakers[name] = [], speaker
            prompt = tuple(history[speaker])
            scheduler.submit(
                Request(RequestId(name), namespace, prompt, SamplingParams(seed=0), StopRules(9, 0, frozenset())), 0.0
            )
        while scheduler.has_work():
            plan = scheduler.plan(0.0)
            assert plan is not None
            served.admitted += [event for event in plan.events if isinstance(event, Admitted)]
            tokens = [random.randrange(1, 1_000) for _ in plan.seats]
            for output in scheduler.commit(StepResult(plan.step_id, tokens, 0.0)):
                answers[output.request_id] += output.token_ids
        for name, answer in answers.items():
            prompt = tuple(history[speakers[name]])
            history[speakers[name]] += answer
            served.requests.append(Logged(prompt, (*prompt, *answer[:-1])))
    return served


def served_ratio(log: Iterable[Logged], *, capacity_tokens: float, page_size: int) -> float:
    """Return the share of prompt tokens that an LRU cache of whole pages hits, a request after the other."""
    cache = PrefixCache(num_pages=int(capacity_tokens) // page_size, page_size=page_size, partial_pages=False)
    namespace = Namespace("simulated")
    num_hit = num_tokens = 0
    for each in log:
        key = token_key(each.computed)
        found = cache.match(namespace, key, limit_tokens=len(each.prompt) - 1)
        receipt = cache.lock(found)
        own = cache.allocate(-(-len(each.computed) // page_size) - len(found.pages))
        assert not isinstance(own, Shortfall), "the cache is smaller than one sequence"
        cache.release(cache.finish(receipt, key, (*found.pages, *own)))
        num_hit += found.num_usable_tokens
        num_tokens += len(each.prompt)
    return num_hit / num_tokens


def mean_and_most(errors: Sequence[float]) -> tuple[float, float]:
    """Return mean and largest absolute error."""
    sizes = [abs(error) for error in errors]
    return sum(sizes) / len(sizes), max(sizes)
