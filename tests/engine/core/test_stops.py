"""Stop strings in streamed text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_engine.core.stops import StopMatcher

_TEXT = st.text(alphabet="ab\n", max_size=24)
_STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4).map(tuple)


def deliver(stops: tuple[str, ...], pieces: list[str]) -> tuple[list[str], str | None]:
    """Run ``pieces`` through a matcher; return what was delivered after each and the stop that ended it."""
    matcher = StopMatcher(stops)
    delivered = []
    for piece in pieces:
        scan = matcher.push(piece)
        delivered.append(scan.text)
        if scan.matched is not None:
            return delivered, scan.matched
    return [*delivered, matcher.flush()], None


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "matched"),
    [
        (("assistant",), ["ple", "as"], "pleas", None),
        (("\n",), ["really", "?"], "really?", None),
        (("END",), ["the E", "N", "D of it"], "the ", "END"),
        (("END",), ["the E", "N", "d"], "the ENd", None),
        (("abc", "b"), ["ab"], "a", "b"),
        (("abc", "bc"), ["abc"], "", "abc"),
        ((), ["any", "thing"], "anything", None),
    ],
)
def test_text_before_the_stop_string_is_delivered_whole(
    stops: tuple[str, ...], pieces: list[str], text: str, matched: str | None
) -> None:
    delivered, stop = deliver(stops, pieces)
    assert ("".join(delivered), stop) == (text, matched)


def test_only_a_real_prefix_of_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(("</s>", "stop"))
    assert matcher.push("x<").text == "x"
    assert matcher.push("/").text == ""
    assert matcher.push("b sto").text == "</b "
    assert matcher.push("w").text == "stow"


@given(_STOPS, _TEXT, st.lists(st.integers(0, 24)))
def test_delivered_text_does_not_depend_on_the_partition(stops: tuple[str, ...], text: str, cuts: list[int]) -> None:
    bounds = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    whole, whole_stop = deliver(stops, [text])
    delivered, stop = deliver(stops, pieces)
    assert ("".join(delivered), stop) == ("".join(whole), whole_stop)


@given(_STOPS, _TEXT)
def test_the_first_completed_stop_string_ends_the_text_and_no_part_of_it_leaks(
    stops: tuple[str, ...], text: str
) -> None:
    delivered, stop = deliver(stops, list(text))
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(s) for s in stops)]
    if not ends:
        assert ("".join(delivered), stop) == (text, None)
    else:
        longest = max((s for s in stops if text[: ends[0]].endswith(s)), key=len)
        assert ("".join(delivered), stop) == (text[: ends[0] - len(longest)], longest)


@given(_STOPS, _TEXT)
def test_nothing_is_held_back_that_could_be_delivered(stops: tuple[str, ...], text: str) -> None:
    matcher = StopMatcher(stops)
    seen = ""
    sent = ""
    for char in text:
        scan = matcher.push(char)
        seen, sent = seen + char, sent + scan.text
        if scan.matched is not None:
            break
        held = seen[len(sent) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
