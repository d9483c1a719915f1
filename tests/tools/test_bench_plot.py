"""A plot is an SVG document that shows every point where it belongs."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

from plot import Line, Mark, Plot, svg

NAMES = "{http://www.w3.org/2000/svg}"


def drawn(plot: Plot) -> ElementTree.Element:
    return ElementTree.fromstring(svg(plot))


def circles(root: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{NAMES}circle")]


def texts(root: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{NAMES}text")]


def line(name: str, *points: tuple[float, float]) -> Line:
    return Line(name, [Mark(x, 0.9 * y, y, 1.1 * y) for x, y in points])


def test_larger_values_lie_further_right_and_higher() -> None:
    places = circles(drawn(Plot("t", "x", "ms", [line("a", (0, 1), (100, 3), (200, 9))])))
    assert sorted(places) == places
    assert sorted((y for _, y in places), reverse=True) == [y for _, y in places]


def test_on_logarithmic_axes_equal_factors_are_equally_far_apart() -> None:
    xs, ys = zip(
        *circles(drawn(Plot("t", "x", "ms", [line("a", (1, 2), (4, 8), (16, 32))], logarithmic=True))), strict=True
    )
    for places in (xs, ys):
        steps = [abs(b - a) for a, b in itertools.pairwise(places)]
        assert abs(steps[0] - steps[1]) <= 0.2


def test_all_lines_and_axes_are_named_whatever_characters_their_names_have() -> None:
    root = drawn(Plot("a < b & c", "keys", "ms", [line("one", (1, 1)), line("two", (1, 2))]))
    assert {"a < b & c", "keys", "ms", "one", "two"} <= set(texts(root))


def test_the_axis_of_a_linear_plot_begins_at_zero_and_reaches_beyond_the_highest_point() -> None:
    root = drawn(Plot("t", "x", "ms", [line("a", (1, 100), (2, 870))]))
    values = [float(text.text or "") for text in root.iter(f"{NAMES}text") if text.attrib["text-anchor"] == "end"]
    assert values[0] == 0
    assert values[-1] >= 870


def test_labels_of_the_x_axis_do_not_overlap() -> None:
    points = [(float(n), 1.0) for n in (1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64)]
    root = drawn(Plot("t", "x", "ms", [line("a", *points)], logarithmic=True))
    places = [float(t.attrib["x"]) for t in root.iter(f"{NAMES}text") if (t.text or "").isdigit()]
    along = [x for x in places if x >= 64]
    assert all(b - a >= 20 for a, b in itertools.pairwise(along))
