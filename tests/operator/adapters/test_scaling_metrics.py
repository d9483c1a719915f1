"""What the operator shows of its decisions, and that it shows nothing that it does not know."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from sapwood_contract.metrics import BY_NAME, SCALING_SIGNALS
from sapwood_metrics.registry import Registry
from sapwood_operator.adapters.scaling_metrics import ScalingMetrics
from sapwood_operator.autoscaling.values import Decision, State, Verdict

NONE: Mapping[str, float] = {}
MEASURED = Verdict("MetricsAvailable", True, "Reported", "all report")
UNMEASURED = Verdict("MetricsAvailable", False, "MetricsMissing", "nobody reports")


class Shown:
    """Metrics, and what a scrape says of them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.registry = Registry()
        self.metrics = ScalingMetrics(self.registry, clock=lambda: self.now)

    def decide(
        self, desired: int, reason: str = "AsNeeded", verdict: Verdict = MEASURED, inputs: Mapping[str, float] = NONE
    ) -> None:
        decision = Decision(
            desired=desired, acts=True, reason=reason, message="", inputs=inputs, verdicts=(verdict,), state=State()
        )
        self.metrics.observe("team", "chat", decision, num_ready=2)

    def series(self) -> dict[tuple[str, ...], float]:
        """Name without its beginning, and label values but for the service's -> value."""
        families = text_string_to_metric_families(self.registry.render().body.decode())
        found = {}
        for sample in (sample for family in families for sample in family.samples):
            assert (sample.labels.pop("namespace"), sample.labels.pop("name")) == ("team", "chat")
            short = sample.name.removeprefix("sapwood_autoscaler_")
            found[(short, *(sample.labels[name] for name in sorted(sample.labels)))] = sample.value
        return found


def test_a_decision_is_shown_with_what_it_was_made_from() -> None:
    shown = Shown()
    shown.decide(3, inputs={"hit_ratio": 0.5, "coverage_ratio": 1.0})
    assert shown.series() == {
        ("desired_replicas",): 3,
        ("ready_replicas",): 2,
        ("signal", "hit_ratio"): 0.5,
        ("signal", "coverage_ratio"): 1.0,
        ("decisions_total", "hold", "AsNeeded"): 1,
        ("last_decision_timestamp_seconds",): 1000,
        ("cache_lost_tokens_total",): 0,
    }


def test_what_is_unknown_now_is_absent_and_not_what_it_was() -> None:
    shown = Shown()
    shown.decide(3, inputs={"hit_ratio": 0.5, "coverage_ratio": 1.0})
    shown.decide(3, inputs={"coverage_ratio": 0.0})
    signals = {key: value for key, value in shown.series().items() if key[0] == "signal"}
    assert signals == {("signal", "coverage_ratio"): 0.0}


def test_every_decision_counts_by_where_it_went_and_why() -> None:
    shown = Shown()
    for desired, reason in ((2, "AsNeeded"), (3, "KvMemory"), (3, "KvMemory"), (3, "KvMemory"), (2, "LoadFell")):
        shown.decide(desired, reason)
    counted = {key[1:]: value for key, value in shown.series().items() if key[0] == "decisions_total"}
    assert counted == {
        ("hold", "AsNeeded"): 1,
        ("up", "KvMemory"): 1,
        ("hold", "KvMemory"): 2,
        ("down", "LoadFell"): 1,
    }


def test_a_decision_without_measurements_leaves_the_time_of_the_last_one_with_them() -> None:
    shown = Shown()
    shown.decide(3, "MetricsMissing", UNMEASURED)
    assert ("last_decision_timestamp_seconds",) not in shown.series()
    shown.decide(3)
    shown.now = 2000.0
    shown.decide(3, "MetricsMissing", UNMEASURED)
    assert shown.series()["last_decision_timestamp_seconds",] == 1000


def test_what_was_lost_is_counted() -> None:
    shown = Shown()
    shown.decide(3)
    shown.metrics.lose("team", "chat", 40.0)
    shown.metrics.lose("team", "chat", 2.5)
    assert shown.series()["cache_lost_tokens_total",] == 42.5


def test_a_service_for_which_nobody_decides_has_no_series() -> None:
    shown = Shown()
    shown.metrics.lose("team", "chat", 40.0)
    assert shown.series() == {}


def test_a_service_for_which_nobody_decides_any_more_vanishes() -> None:
    shown = Shown()
    shown.decide(3, inputs={"hit_ratio": 0.5})
    shown.metrics.lose("team", "chat", 1.0)
    shown.metrics.forget("team", "chat")
    assert shown.series() == {}
    shown.metrics.forget("team", "another")
    shown.decide(1)
    assert shown.series()["decisions_total", "hold", "AsNeeded"] == 1


def test_every_signal_of_the_contract_can_be_shown() -> None:
    shown = Shown()
    shown.decide(3, inputs=dict.fromkeys(SCALING_SIGNALS, 1.0))
    told = {key[1] for key in shown.series() if key[0] == "signal"}
    assert told == set(BY_NAME["sapwood_autoscaler_signal"].values["signal"])
