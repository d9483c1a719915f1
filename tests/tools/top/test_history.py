"""What the answers of one engine come to, one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support_top import CURVE, REQUESTS, cache, figures, node, sample
from support_tree_changes import TREE_CHANGES, Event

from sapwood_contract.curve import describe_curve, no_curve
from sapwood_contract.http import EngineLoad, LoadSnapshot
from sapwood_tools.top import panels
from sapwood_tools.top.cache_changes import changes
from sapwood_tools.top.figures import Interval
from sapwood_tools.top.gateway_figures import GatewayFigures
from sapwood_tools.top.history import WINDOW_SECONDS, EngineHistory, EngineView, GatewayHistory
from sapwood_tools.top.samples import Sample, read_cache, read_load, read_requests
from sapwood_tools.top.source import GatewayAnswer


@pytest.mark.parametrize(
    ("before", "after", "expected"), [row[1:] for row in TREE_CHANGES], ids=[row[0] for row in TREE_CHANGES]
)
def test_what_happened_in_the_tree_is_told(
    before: dict[str, Any], after: dict[str, Any], expected: list[Event]
) -> None:
    told = changes(read_cache(before), read_cache(after))
    assert [(change.kind, change.node.serial, change.node.num_tokens) for change in told] == expected


def test_of_a_node_that_lost_its_end_only_that_is_told_to_be_evicted() -> None:
    view = taken(sample(0.0, node(1, tokens=64)), sample(1.0, node(1, tokens=48)))
    assert panels.seen_lines(view, 5).plain.endswith("evicted   #1      the last 16 tokens")


def taken(*samples: Sample) -> EngineView:
    history = EngineHistory("engine", "http://127.0.0.1:8001")
    views = [history.take(each) for each in samples]
    return views[-1]


def test_after_one_answer_there_is_no_rate() -> None:
    view = taken(sample(0.0))
    assert (view.interval, view.seen, view.num_restarts) == (Interval(), (), 0)


def test_rates_are_of_the_window_and_not_of_all_time() -> None:
    idle = [replace(sample(float(at)), figures=figures(0.0)) for at in range(60)]
    busy = [replace(sample(float(60 + at)), figures=figures(float(at))) for at in range(1, 31)]
    view = taken(*idle, *busy)
    assert view.interval.seconds == WINDOW_SECONDS
    assert view.interval.output_tokens_per_second == pytest.approx(212)
    assert view.interval.hit_rate == pytest.approx(0.75)


def test_answers_far_apart_are_compared_all_the_same() -> None:
    view = taken(sample(0.0), sample(100.0))
    assert view.interval.seconds == 100


def test_of_an_engine_that_does_not_answer_nothing_is_claimed() -> None:
    view = taken(sample(0.0), sample(1.0), Sample(2.0, problem="does not answer"))
    assert (view.now.has_answer, view.now.problem, view.interval) == (False, "does not answer", Interval())


def test_an_engine_that_comes_back_the_same_has_a_past() -> None:
    view = taken(sample(0.0, node(1)), Sample(1.0, problem="does not answer"), sample(2.0, node(1), node(2)))
    assert view.interval.seconds == 2
    assert [(seen.at, seen.change.kind, seen.change.node.serial) for seen in view.seen] == [(2.0, "appeared", 2)]


def test_an_engine_that_was_started_anew_has_none() -> None:
    anew = replace(sample(2.0, node(1)), figures=replace(figures(0.0), requests=1))
    view = taken(sample(0.0), sample(1.0), Sample(1.5, problem="does not answer"), anew)
    assert (view.interval, view.seen, view.num_restarts) == (Interval(), (), 1)


def test_what_was_seen_is_told_the_latest_first_and_only_so_much_of_it() -> None:
    samples = [sample(float(at), node(1), node(at + 2)) for at in range(500)]
    view = taken(*samples)
    assert (view.seen[0].at, view.seen[0].change.node.serial) == (499.0, 500)
    assert len(view.seen) == 200


def test_a_gateways_reasons_are_shares_of_the_requests_of_late() -> None:
    history = GatewayHistory()

    def scrape(at: float, prefix: float, load: float) -> GatewayAnswer:
        figures = GatewayFigures(1, 0, (("ready", 2),), (("prefix", prefix), ("least_load", load)))
        return GatewayAnswer("http://127.0.0.1:8081", at, figures)

    assert history.take(scrape(0.0, 100, 900)).routed == ()
    assert history.take(scrape(1.0, 103, 901)).routed == (("prefix", 0.75), ("least_load", 0.25))
    silent = GatewayAnswer("http://127.0.0.1:8081", 2.0, None, "does not answer")
    assert (history.take(silent).now, history.take(silent).problem) == (None, "does not answer")
    assert history.take(scrape(3.0, 0, 5)).routed == ()  # it was started anew


# --- answers as the API gives them


def test_a_newer_engine_may_say_more() -> None:
    load = read_load({"model": "m", "state": "ready", "load": {"num_running": 2, "later": 1}, "later": {}})
    assert load == EngineLoad("m", "ready", LoadSnapshot(num_running=2))
    told = {name: getattr(REQUESTS[0], name) for name in REQUESTS[0].__dataclass_fields__}
    assert read_requests({"requests": [{**told, "later": 1}]}) == (REQUESTS[0],)


def test_the_tree_is_read_with_the_serials_of_parents_and_its_curve() -> None:
    def listed(serial: int, place: int, parent: int | None) -> dict[str, object]:
        counts = {"num_tokens": 16, "lock_ref": 0, "hits": 0, "tick": serial}
        return {"id": place, "serial": serial, "parent": parent, **counts}

    answer = {
        "num_nodes": 2,
        "truncated": False,
        "namespaces": [{"namespace": {"model_revision": "main"}, "nodes": [listed(7, 0, None), listed(3, 1, 0)]}],
        "curve": describe_curve(CURVE),
    }
    assert read_cache(answer) == cache(node(7), node(3, 7), curve=CURVE)


@pytest.mark.parametrize("curve", [None, describe_curve(no_curve(100))])
def test_a_curve_that_knows_nothing_is_unknown(curve: dict[str, object] | None) -> None:
    assert read_cache({"num_nodes": 0, "truncated": False, "namespaces": [], "curve": curve}).curve is None
