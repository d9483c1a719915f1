"""A workload is run as it says: so many at once, in order, conversations turn after turn."""

from __future__ import annotations

import asyncio

from sapwood_tools.bench import measure
from sapwood_tools.bench.client import Answer, Failure
from sapwood_tools.bench.workloads import Completion, Conversation, Workload


class ScriptedServer:
    """Answers in rounds: nobody is answered before everybody who can be under way is."""

    def __init__(self, concurrency: int, failing: frozenset[str] = frozenset()) -> None:
        self.asked: list[str] = []
        self.num_under_way = 0
        self.most_under_way = 0
        self._failing = failing
        self._concurrency = concurrency

    async def complete(self, prompt: str, max_tokens: int) -> Answer | Failure:
        self.asked.append(prompt)
        self.num_under_way += 1
        self.most_under_way = max(self.most_under_way, self.num_under_way)
        for _ in range(self._concurrency + 1):  # every lane gets a turn of the loop before this one answers
            await asyncio.sleep(0)
        self.num_under_way -= 1
        if any(word in prompt for word in self._failing):
            return Failure("as told")
        return Answer(f"answer {len(self.asked)}", 0.0, 1.0, 2.0, len(prompt), max_tokens, 7)


def completions(count: int) -> tuple[Completion, ...]:
    return tuple(Completion(f"prompt {i:02}", prompt_tokens=9, max_tokens=4) for i in range(count))


async def test_as_many_requests_are_under_way_as_the_workload_says_and_no_more() -> None:
    server = ScriptedServer(3)
    outcome = await measure.run(Workload("w", 0, 3, completions(10)), server)
    assert server.most_under_way == 3
    assert len(outcome.answers) == 10


async def test_items_are_started_in_the_order_of_the_file() -> None:
    server = ScriptedServer(3)
    await measure.run(Workload("w", 0, 3, completions(10)), server)
    assert server.asked == [f"prompt {i:02}" for i in range(10)]


async def test_more_lanes_than_items_is_no_fault() -> None:
    outcome = await measure.run(Workload("w", 0, 16, completions(2)), ScriptedServer(16))
    assert len(outcome.answers) == 2


async def test_a_turn_has_everything_said_before_it_in_its_prompt() -> None:
    server = ScriptedServer(1)
    await measure.run(Workload("w", 0, 1, (Conversation("rules", ("one", "two"), 4),)), server)
    first, second = server.asked
    assert first == "<|im_start|>system\nrules<|im_end|>\n<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n"
    assert second == first + "answer 1<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"


async def test_a_failed_turn_ends_its_conversation_and_no_other() -> None:
    talks = (Conversation("bad", ("one", "two"), 4), Conversation("good", ("one", "two"), 4))
    outcome = await measure.run(Workload("w", 0, 2, talks), ScriptedServer(2, frozenset({"bad"})))
    assert (len(outcome.failures), len(outcome.answers)) == (1, 2)


async def test_prompts_that_the_server_counts_differently_are_counted() -> None:
    items = (*completions(3), Completion("longer than nine", prompt_tokens=9, max_tokens=4))
    outcome = await measure.run(Workload("w", 0, 2, items), ScriptedServer(2))
    assert outcome.num_other_lengths == 1
