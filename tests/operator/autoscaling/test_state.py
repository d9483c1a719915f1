"""What is remembered in a status."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_operator.autoscaling.state import MOST_CHANGES, from_status, to_status
from sapwood_operator.autoscaling.values import Change, State

TIMES = st.integers(0, 4_000_000_000).map(float)
COUNTS = st.integers(0, 1000)
CHANGES = st.builds(Change, TIMES, COUNTS, COUNTS, st.sampled_from(["LoadFell", "Demand"]), st.text(max_size=20))
STATES = st.builds(
    State,
    desired=st.none() | COUNTS,
    fewer_since=st.none() | TIMES,
    more_since=st.none() | TIMES,
    more_least=st.none() | COUNTS,
    waking_since=st.none() | TIMES,
    blind_since=st.none() | TIMES,
    unmade_since=st.none() | TIMES,
    tried_tokens=st.none() | COUNTS,
    too_many_tokens=st.none() | COUNTS,
    changes=st.lists(CHANGES, max_size=MOST_CHANGES).map(tuple),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("desired", "decisions", "state", "fewerSince", "moreLeast", "blindSince", "time", "from", "to", "reason")


@given(STATES)
def test_a_state_comes_back_from_a_status_as_it_was(state: State) -> None:
    assert from_status(json.loads(json.dumps(to_status(state)))) == state


@given(JSON | st.dictionaries(st.sampled_from(KEYS), JSON | st.lists(st.dictionaries(st.sampled_from(KEYS), JSON))))
def test_whatever_stands_in_a_status_is_read_as_some_state(status: Any) -> None:
    state = from_status(status)
    assert from_status(to_status(state)) == state


@pytest.mark.parametrize("status", [None, "text", [], {}, {"state": 3, "decisions": {}, "desired": True}])
def test_a_status_that_holds_nothing_usable_is_as_if_nothing_was_ever_decided(status: Any) -> None:
    assert from_status(status) == State()


def test_fractions_of_seconds_are_lost_and_nothing_else() -> None:
    state = State(desired=3, fewer_since=1000.7, changes=(Change(2000.2, 2, 3, "Demand", "why"),))
    status = to_status(state)
    assert status == {
        "desired": 3,
        "lastScaleTime": "1970-01-01T00:33:20Z",
        "decisions": [
            {"time": "1970-01-01T00:33:20Z", "from": 2, "to": 3, "reason": "Demand", "message": "why"},
        ],
        "state": {"fewerSince": "1970-01-01T00:16:40Z"},
    }
