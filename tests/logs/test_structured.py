"""Log lines: one JSON object each, and never what a client wrote."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from sapwood_logs.structured import configure_logging


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def fail(prompt: str) -> None:
    raise RuntimeError(f"length {len(prompt)}")


def log_a_failure() -> None:
    try:
        fail("a very secret prompt")
    except RuntimeError:
        logging.getLogger("part").exception("call failed", extra={"request_id": "r1"})


def test_a_record_is_one_json_object_with_what_belongs_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", program="http", for_people=False)
    logging.getLogger("part").info("call ended", extra={"request_id": "r1", "num_tokens": 3})
    logging.getLogger("part").debug("not written")
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "event": "call ended",
        "level": "info",
        "logger": "part",
        "num_tokens": 3,
        "program": "http",
        "request_id": "r1",
    }


@pytest.mark.parametrize("for_people", [True, False])
def test_a_traceback_shows_where_but_no_values(for_people: bool, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", program="http", for_people=for_people)
    log_a_failure()
    written = capsys.readouterr().err
    assert "length 20" in written
    assert "log_a_failure" in written
    # The frames' own source lines may show; the value, as a variable's, may not.
    lines = [line for line in written.splitlines() if "very secret" in line]
    assert all('fail("a very secret prompt")' in line for line in lines)
    assert not for_people or len(lines) <= 1
    if not for_people:
        assert len(written.splitlines()) == 1
        assert not lines
