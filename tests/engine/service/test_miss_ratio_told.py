"""What the worker fits, on its way out, once a second at most: the miss-ratio curve into series and `/admin/cache`, the
costs of steps into series.
"""

from __future__ import annotations

import math
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families
from support_fake_executor import FakeExecutor
from support_service import options, small_capacity

from sapwood_contract.curve import Curve, CurvePoint
from sapwood_contract.http import LoadSnapshot
from sapwood_engine.config import engine_config
from sapwood_engine.core.request import Namespace, Request, RequestId, SamplingParams, StopRules
from sapwood_engine.core.step import StepResult
from sapwood_engine.service.engine_loop import EngineLoop
from sapwood_engine.service.messages import (
    AdminCall,
    AdminReply,
    FromWorker,
    Shutdown,
    Submit,
    TokenBatch,
    ToWorker,
)
from sapwood_engine.service.metrics import EngineMetrics
from sapwood_engine.service.worker import build_core


class SlowExecutor(FakeExecutor):
    """Moves a clock by ``seconds`` a step."""

    def __init__(self, seconds: float) -> None:
        super().__init__(small_capacity())
        self.now = 0.0
        self._seconds = seconds

    def collect(self) -> StepResult:
        self.now += self._seconds
        result = super().collect()
        result.seconds = self._seconds
        return result


class Turns:
    """A pipe that gives one message a turn, then a shutdown."""

    def __init__(self, messages: list[ToWorker]) -> None:
        self.sent: list[FromWorker] = []
        self._messages = [*messages, Shutdown()]

    def send(self, message: FromWorker) -> None:
        self.sent.append(message)

    def receive_ready(self) -> list[ToWorker]:
        return [self._messages.pop(0)] if self._messages else []

    def wait(self, seconds: float | None) -> bool:
        return True


def told(messages: list[ToWorker], *, step_seconds: float, measured: bool = True) -> list[FromWorker]:
    """Run a loop over ``messages`` and return all that it says."""
    launch = options(miss_ratio_curve="on" if measured else "off")
    executor = SlowExecutor(step_seconds)
    cache, scheduler = build_core(engine_config(launch), executor.capacity)
    turns = Turns(messages)
    EngineLoop(
        scheduler=scheduler, cache=cache, executor=executor, channel=turns, overlap=False, clock=lambda: executor.now
    ).run()
    return turns.sent


def curves(sent: list[FromWorker]) -> list[Curve]:
    return [message.curve for message in sent if isinstance(message, TokenBatch) and message.curve is not None]


def submit(number: int, *, max_tokens: int = 4) -> Submit:
    prompt = tuple(range(number, number + 40))
    sampling = SamplingParams(seed=0, temperature=0.0)
    return Submit(Request(RequestId(str(number)), Namespace("m"), prompt, sampling, StopRules(max_tokens)))


def test_under_load_the_curve_is_told_once_a_second_at_most_and_at_rest_once_more() -> None:
    sent = told([submit(number, max_tokens=8) for number in range(20)], step_seconds=0.25)
    times_told = [each.num_samples for each in curves(sent)]
    num_batches = sum(isinstance(message, TokenBatch) for message in sent)
    assert times_told == sorted(set(times_told))
    assert 3 <= len(times_told) <= num_batches // 3
    (last,) = [message for message in sent if isinstance(message, TokenBatch)][-1:]
    assert last.curve is None or last.curve.num_samples == times_told[-1]


def test_an_engine_that_nobody_asks_tells_its_curve_once() -> None:
    assert len(curves(told([], step_seconds=1.0))) == 1


def test_where_the_curve_is_off_none_is_told_and_admin_cache_says_so() -> None:
    sent = told([submit(1), AdminCall(1, "cache", {"max_nodes": 0})], step_seconds=1.0, measured=False)
    assert curves(sent) == []
    (reply,) = [message for message in sent if isinstance(message, AdminReply)]
    assert reply.result["curve"]["enabled"] is False
    assert reply.result["curve"]["points"] == ()


def test_admin_cache_without_nodes_has_the_whole_curve() -> None:
    calls: list[ToWorker] = [submit(number, max_tokens=1) for number in range(60)]
    sent = told([*calls, AdminCall(1, "cache", {"max_nodes": 0})], step_seconds=0.01)
    (reply,) = [message for message in sent if isinstance(message, AdminReply)]
    assert [space["nodes"] for space in reply.result["namespaces"]] in ([[]], [])
    curve = reply.result["curve"]
    assert curve["enabled"] is True
    assert curve["points"][-1]["capacity_tokens"] is None
    assert curve["capacity_tokens"] == small_capacity().num_pages * small_capacity().page_size


# --- series


def series(metrics: EngineMetrics) -> dict[str, float]:
    """Of the curve: name, and the capacity where there is one -> value."""
    families = text_string_to_metric_families(metrics.render().body.decode())
    return {
        " ".join([sample.name, *(v for k, v in sample.labels.items() if k == "capacity")]): sample.value
        for family in families
        for sample in family.samples
        if "mrc" in sample.name or "regret" in sample.name or "working_set" in sample.name
    }


def batch(curve: Curve) -> TokenBatch:
    return TokenBatch(deltas=[], load=LoadSnapshot(), curve=curve)


def test_before_a_curve_is_told_its_ratios_are_unknown_and_not_zero() -> None:
    values = series(EngineMetrics("m"))
    unknown = {name for name, value in values.items() if math.isnan(value)}
    assert unknown == {
        *(f"sapwood_mrc_hit_ratio {capacity}" for capacity in ("0.5x", "1x", "2x", "4x", "8x", "inf")),
        "sapwood_working_set_tokens",
    }


def test_the_series_are_the_curve_at_multiples_of_the_capacity() -> None:
    metrics = EngineMetrics("m")
    points = tuple(CurvePoint(100.0 * 2**step, (step + 1) / 10) for step in range(6))
    metrics.observe(batch(Curve(True, 0.05, 500, 200, (*points, CurvePoint(None, 0.9)), 310.0, 40)))
    metrics.observe(batch(Curve(True, 0.05, 700, 200, (*points, CurvePoint(None, 0.9)), 320.0, 45)))
    assert series(metrics) == {
        "sapwood_mrc_hit_ratio 0.5x": 0.1,
        "sapwood_mrc_hit_ratio 1x": 0.2,
        "sapwood_mrc_hit_ratio 2x": 0.3,
        "sapwood_mrc_hit_ratio 4x": 0.4,
        "sapwood_mrc_hit_ratio 8x": 0.5,
        "sapwood_mrc_hit_ratio inf": 0.9,
        "sapwood_mrc_sample_rate": 0.05,
        "sapwood_mrc_samples_total": 700.0,
        "sapwood_working_set_tokens": 320.0,
        "sapwood_regret_tokens_total": 45.0,
    }


# --- costs of steps


def test_costs_of_steps_are_told_once_a_second_at_most_and_only_where_they_changed() -> None:
    sent = told([submit(number, max_tokens=8) for number in range(20)], step_seconds=0.25)
    batches = [message for message in sent if isinstance(message, TokenBatch)]
    costs = [batch.step_costs for batch in batches if batch.step_costs is not None]
    assert 2 <= len(costs) <= len(batches) // 3
    assert {"decode", "base"} <= set(costs[-1])
    assert all(one != other for one, other in pairwise(costs))


def test_costs_are_absent_until_they_are_told_and_gone_with_the_worker() -> None:
    metrics = EngineMetrics("m")

    def shown() -> dict[str, float]:
        families = text_string_to_metric_families(metrics.render().body.decode())
        samples = [sample for family in families for sample in family.samples]
        return {each.labels["part"]: each.value for each in samples if each.name == "sapwood_step_cost_seconds"}

    assert shown() == {}
    metrics.observe(TokenBatch(deltas=[], load=LoadSnapshot(), step_costs={"decode": 0.25}))
    metrics.observe(TokenBatch(deltas=[], load=LoadSnapshot()))
    assert shown() == {"decode": 0.25}
    metrics.worker_ended()
    assert shown() == {}
