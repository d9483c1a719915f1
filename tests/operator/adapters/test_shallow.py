"""Documents that are nested too deeply to be read whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_operator.adapters.shallow import DOCUMENT_LEVELS, read_json, shallow
from sapwood_operator.domain.spec import MAX_LEVELS

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def levels_of(value: Any) -> int:
    return 1 + levels_of(next(iter(value.values()))) if isinstance(value, dict) else 0


@given(VALUES)
def test_a_document_that_is_not_deep_stays_as_it_is(value: object) -> None:
    document = json.dumps(value).encode()
    assert shallow(document) == document


@pytest.mark.parametrize(
    ("levels", "left"),
    [(DOCUMENT_LEVELS, DOCUMENT_LEVELS), (DOCUMENT_LEVELS + 1, DOCUMENT_LEVELS), (100_000, DOCUMENT_LEVELS)],
)
def test_a_document_is_cut_at_the_last_level_that_is_read(levels: int, left: int) -> None:
    assert levels_of(read_json(nested(levels).encode())) == left


def test_one_deep_item_of_a_list_leaves_the_others_whole() -> None:
    whole = {"b": [1, {"c": "}]{["}]}
    document = f'{{"items":[{json.dumps(whole)},{nested(5000)},{json.dumps(whole)}]}}'
    first, deep, last = read_json(document.encode())["items"]
    assert (first, last) == (whole, whole)
    assert MAX_LEVELS < levels_of(deep) < DOCUMENT_LEVELS


@pytest.mark.parametrize("text", [r'"\"}"', r'"\\"', '"[[["', r'"\\\"{"'])
def test_brackets_within_texts_are_no_levels(text: str) -> None:
    document = f"[{text},{'[' * 5000}{']' * 5000},{text}]".encode()
    assert [read_json(document)[0], read_json(document)[2]] == [json.loads(text)] * 2


@pytest.mark.parametrize(
    "document", ["[" * 100_000, nested(100_000)[:-1], "]" * 100_000, '"' + "\\" * 99_999, "<html>"]
)
def test_what_is_no_json_is_called_so(document: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|Extra|Invalid"):
        read_json(document.encode())
