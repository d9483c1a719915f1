"""Quiet and disturbed runs alternate, with a neighbour that is there in its turn alone."""

from __future__ import annotations

import psutil
import pytest

from interference import Measured, busy_neighbour, judge_streams, measure
from sapwood_tools.bench.client import Answer, Failure


class FakeClient:
    """Answers at once, and remembers whether a neighbour was busy."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.busy: list[bool] = []

    async def complete(self, prompt: str, max_tokens: int) -> Answer | Failure:
        self.asked.append((prompt, max_tokens))
        self.busy.append(bool(psutil.Process().children()))
        return Answer("x", 0.0, 1.0, 3.0, len(prompt), max_tokens, 0, (0.25,))


class FailingClient:
    """Answers nothing."""

    async def complete(self, prompt: str, max_tokens: int) -> Answer | Failure:
        return Failure("status 500")


async def test_every_number_of_streams_is_measured_quiet_and_disturbed_as_often() -> None:
    client = FakeClient()
    found = await measure(client, 2)
    assert {n: {busy: len(runs) for busy, runs in by.items()} for n, by in found.items()} == {
        1: {False: 2, True: 2}, 16: {False: 2, True: 2},
    }  # fmt: skip
    assert client.busy.count(True) == client.busy.count(False)


async def test_speed_is_tokens_after_the_first_over_the_time_of_all_streams() -> None:
    found = await measure(FakeClient(), 1)
    assert found[1][False] == [Measured(255 / 2, 0.25)]
    assert found[16][True] == [Measured(16 * 95 / 2, 0.25)]


async def test_no_prompt_is_asked_twice() -> None:
    client = FakeClient()
    await measure(client, 1)
    assert len({prompt for prompt, _ in client.asked}) == len(client.asked) == 3 * 2 * 2 * (1 + 16)


async def test_an_answer_that_does_not_come_ends_the_run() -> None:
    with pytest.raises(RuntimeError, match="status 500"):
        await measure(FailingClient(), 1)


def test_the_neighbour_runs_on_one_core_and_is_gone_afterwards() -> None:
    with busy_neighbour() as process:
        neighbour = psutil.Process(process.pid)
        if hasattr(neighbour, "cpu_affinity"):
            assert len(neighbour.cpu_affinity()) == 1
    assert process.returncode is not None


@pytest.mark.parametrize(
    ("busy", "holds"),
    [(Measured(50, 0.4), True), (Measured(49, 0.4), False), (Measured(90, 1.1), False)],
)
def test_half_the_throughput_and_no_stall_of_a_second_are_the_bars(busy: Measured, holds: bool) -> None:
    assert judge_streams(16, [Measured(100, 0.1)] * 3, [busy] * 3) is holds
