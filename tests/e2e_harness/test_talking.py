"""A stream that was cut, refused or shortened is never taken for a whole one."""

from __future__ import annotations

import pytest

from talking import read

TOKENS = ['data: {"choices": [{"delta": {"content": "a"}, "finish_reason": null}]}', ""]
END = ['data: {"choices": [{"delta": {}, "finish_reason": "length"}]}', ""]
USAGE = ['data: {"choices": [], "usage": {"completion_tokens": 1}}', ""]
DONE = ["data: [DONE]", ""]
ERROR = ['data: {"error": {"code": "upstream_ended"}}', ""]


def test_a_stream_with_all_its_tokens_a_reason_and_an_end_is_whole() -> None:
    assert read(iter([*TOKENS, *END, *USAGE, *DONE]), 1).is_whole


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [*TOKENS, *END, *USAGE],
        [*TOKENS, *DONE],
        [*TOKENS, *USAGE, *DONE],
        [*TOKENS, *END, *USAGE, *ERROR, *DONE],
        [*TOKENS, *ERROR],
    ],
)
def test_a_stream_that_lacks_something_or_ends_with_an_error_is_not(lines: list[str]) -> None:
    assert not read(iter(lines), 1).is_whole


def test_a_stream_of_fewer_tokens_than_asked_for_is_not() -> None:
    assert not read(iter([*TOKENS, *END, *USAGE, *DONE]), 2).is_whole
