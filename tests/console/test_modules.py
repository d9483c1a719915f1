"""The page's pure modules, in a browser: they are given values and return values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page
from support_browser import NOWHERE, chromium, serve_files, watched
from support_tree_changes import EMPTY, LONG, SPLIT, TREE_CHANGES, Event, node, tree

CALL = "async ([module, name, args]) => (await import(`/ui/${module}.js`))[name](...args)"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as browser, watched(browser) as seen:
        serve_files(seen.page, {"/ui/about": 404, "/v1/models": {"data": []}})
        seen.page.goto(f"{NOWHERE}/ui")
        yield seen.page


@pytest.mark.parametrize(
    ("before", "after", "expected"), [case[1:] for case in TREE_CHANGES], ids=[case[0] for case in TREE_CHANGES]
)
def test_two_looks_at_the_tree_tell_what_happened_in_between(
    page: Page, before: dict[str, Any], after: dict[str, Any], expected: list[Event]
) -> None:
    events = page.evaluate(CALL, ["diff", "diff", [before, after]])
    assert [(event["kind"], event["serial"], event["numTokens"]) for event in events] == expected


def test_a_split_tells_both_parts_and_an_eviction_whether_all_went(page: Page) -> None:
    split, _ = page.evaluate(CALL, ["diff", "diff", [LONG, SPLIT]])
    assert (split["upperTokens"], split["lowerTokens"], split["lower"]) == (32, 32, 1)
    (part,) = page.evaluate(CALL, ["diff", "diff", [LONG, tree(node(1, 48))]])
    (whole,) = page.evaluate(CALL, ["diff", "diff", [LONG, EMPTY]])
    assert (part["isWhole"], whole["isWhole"]) == (False, True)


LAYOUT = """async ([snapshot, options]) => {
  const { layout } = await import("/ui/tree.js");
  return layout(snapshot, options);
}"""


def test_a_node_is_as_wide_as_what_is_in_it_and_below_it_and_children_stand_under_it(page: Page) -> None:
    placed = page.evaluate(LAYOUT, [SPLIT, {"colour": "recency"}])
    boxes = [(box["serial"], box["row"], box["left"], box["width"]) for box in placed["boxes"]]
    assert boxes == [(2, 0, 0, 1), (1, 1, 0, 32 / 80), (3, 1, 32 / 80, 16 / 80)]
    assert (placed["numRows"], placed["numHidden"], placed["root"]) == (2, 0, 0)


def test_a_chosen_node_fills_the_width_until_it_goes(page: Page) -> None:
    placed = page.evaluate(LAYOUT, [SPLIT, {"colour": "recency", "root": 3}])
    assert [(box["serial"], box["row"], box["width"]) for box in placed["boxes"]] == [(3, 0, 1)]
    placed = page.evaluate(LAYOUT, [SPLIT, {"colour": "recency", "root": 9}])
    assert (len(placed["boxes"]), placed["root"]) == (3, 0)


def test_what_is_too_narrow_is_counted_with_all_below_it(page: Page) -> None:
    snapshot = tree(node(1, 1000), node(2, 1), node(3, 1, parent=1))
    placed = page.evaluate(LAYOUT, [snapshot, {"colour": "recency", "narrowest": 0.01}])
    assert ([box["serial"] for box in placed["boxes"]], placed["numHidden"]) == ([1], 2)


def test_several_namespaces_stand_side_by_side_each_under_its_name(page: Page) -> None:
    first, second = tree(node(1, 30)), tree(node(2, 10))
    second["namespaces"][0]["namespace"] = {"extra_key": "blue", "tenant": "***"}
    both = {**first, "namespaces": first["namespaces"] + second["namespaces"]}
    placed = page.evaluate(LAYOUT, [both, {"colour": "recency"}])
    assert [(box.get("name"), box["row"], box["left"], box["width"]) for box in placed["boxes"]] == [
        ("shared by all", 0, 0, 0.75),
        (None, 1, 0, 0.75),
        ("extra key blue, of a tenant", 0, 0.75, 0.25),
        (None, 1, 0.75, 0.25),
    ]


@pytest.mark.parametrize(
    ("colour", "field", "values", "heats"),
    [
        ("recency", "tick", [5], [4]),
        ("recency", "tick", [7, 100, 7, 8], [0, 4, 0, 2]),
        ("hits", "hits", [0, 0], [0, 0]),
        ("hits", "hits", [0, 1, 1000], [0, 1, 4]),
    ],
)
def test_colour_goes_by_the_order_of_use_or_by_hits(
    page: Page, colour: str, field: str, values: list[int], heats: list[int]
) -> None:
    snapshot = tree(*(node(serial, 8, **{field: value}) for serial, value in enumerate(values, start=1)))
    placed = page.evaluate(LAYOUT, [snapshot, {"colour": colour}])
    assert [box["heat"] for box in placed["boxes"]] == heats


def curve(*points: tuple[int | None, float], capacity: int = 100, samples: int = 10) -> dict[str, Any]:
    told = [{"capacity_tokens": at, "hit_ratio": ratio} for at, ratio in points]
    return {"enabled": True, "num_samples": samples, "capacity_tokens": capacity, "points": told}


LINE = curve((100, 0.4), (200, 0.6), (None, 0.8))


@pytest.mark.parametrize(
    ("capacity", "ratio"), [(0, 0), (50, 0.2), (100, 0.4), (150, 0.5), (200, 0.6), (10_000, 0.6)], ids=str
)
def test_a_curve_is_read_on_the_line_between_its_points(page: Page, capacity: int, ratio: float) -> None:
    assert page.evaluate(CALL, ["curve", "ratioAt", [LINE, capacity]]) == pytest.approx(ratio)


def test_replicas_together_are_weighed_by_their_samples(page: Page) -> None:
    other = curve((100, 1.0), capacity=100, samples=30)
    assert page.evaluate(CALL, ["curve", "ratioTogether", [[LINE, other], 1]]) == pytest.approx((10 * 0.4 + 30) / 40)


def test_a_curve_is_known_as_far_as_it_was_measured(page: Page) -> None:
    assert page.evaluate(CALL, ["curve", "knownUpTo", [[LINE, curve((800, 1.0), (None, 1.0))]]]) == 2


def test_without_points_nothing_is_told(page: Page) -> None:
    unknown: list[Any] = [curve(), {"enabled": False, "points": []}, None]
    assert page.evaluate(CALL, ["curve", "usable", [unknown]]) == []
    assert str(page.evaluate(CALL, ["curve", "ratioTogether", [[], 1]])) == "nan"


def test_what_was_measured_counts_tokens_of_ended_requests(page: Page) -> None:
    def request(state: str, prompt: int, cached: int | None) -> dict[str, Any]:
        return {"state": state, "num_prompt_tokens": prompt, "num_cached_tokens": cached}

    told = {"requests": [request("ended", 100, 50), request("ended", 300, 300), request("running", 900, 0)]}
    lists = [told, {"requests": [request("ended", 50, None)]}]
    assert page.evaluate(CALL, ["curve", "measured", [lists]]) == {"ratio": 350 / 400, "numRequests": 2}


def test_phases_lie_one_after_the_other_and_what_is_nobodys_comes_last(page: Page) -> None:
    request = {"duration_seconds": 2.0, "phases": {"queue": 0.5, "prefill": 1.0, "decode": 0.0}}
    drawn = page.evaluate(CALL, ["waterfall", "bars", [request, 4.0]])
    assert [(bar["phase"], bar["left"], bar["width"]) for bar in drawn] == [
        ("queue", 0, 0.125),
        ("prefill", 0.125, 0.25),
        ("other", 0.375, 0.125),
    ]
    assert page.evaluate(CALL, ["waterfall", "longest", [[request, {**request, "duration_seconds": 3.0}]]]) == 3.0


STREAM = """async (pieces) => {
  const { events } = await import("/ui/sse.js");
  const encoder = new TextEncoder();
  const start = (to) => { pieces.forEach((piece) => to.enqueue(encoder.encode(piece))); to.close(); };
  const body = new ReadableStream({ start });
  const found = [];
  for await (const event of events({ body })) found.push(event);
  return found;
}"""


def test_events_are_read_wherever_the_stream_is_cut(page: Page) -> None:
    pieces = ['data: {"a"', ': "ä"}\n', '\n: comment\n\ndata: {"b": 2}\n\ndata: [DO', "NE]\n\n"]
    assert page.evaluate(STREAM, pieces) == [{"a": "ä"}, {"b": 2}]
