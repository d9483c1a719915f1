"""Documents that are nested too deeply to be read whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_contract.shallow import LEVELS, read_json, shallow

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


@pytest.mark.parametrize(("levels", "left"), [(3, 3), (4, 3), (100_000, 3)])
def test_a_document_is_cut_at_the_last_level_that_is_wanted(levels: int, left: int) -> None:
    assert levels_of(json.loads(shallow(nested(levels).encode(), levels=3))) == left


@pytest.mark.parametrize("text", ["plain", '"}', "\\", "[[[", '\\"{'])
def test_one_deep_item_of_a_list_leaves_the_others_whole_also_where_texts_have_brackets(text: str) -> None:
    whole = {"b": [1, {"c": text}]}
    document = f'{{"items":[{json.dumps(whole)},{nested(10_000)},{json.dumps(whole)}]}}'
    first, deep, last = read_json(document.encode())["items"]
    assert (first, last) == (whole, whole)
    assert levels_of(deep) == LEVELS - 2


@pytest.mark.parametrize("document", ["", "<html>", "[" * 100_000, nested(100_000)[:-1], '"' + "\\" * 99_999])
def test_what_is_no_json_is_called_so(document: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|Invalid"):
        read_json(document.encode())
