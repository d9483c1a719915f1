"""Log lines: one JSON object each, and never what a client wrote."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.contextvars import bound_contextvars

from sapwood_logs.structured import configure_logging

SECRET = "a very secret prompt"


def records(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logging.captureWarnings(False)
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level


def fail(prompt: str) -> None:
    raise AssertionError(f"length {len(prompt)}")


def log_a_failure() -> None:
    try:
        fail("a very secret prompt")
    except AssertionError:
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


def raise_about(text: str) -> None:
    """An exception of a library that quotes ``text``, caused by another, in a group."""
    try:
        try:
            {"": 0}[text]
        except KeyError as error:
            raise ExceptionGroup(text, [ValueError(text), error]) from error
    except ExceptionGroup as error:
        error.add_note(text)
        raise TypeError(text) from error


@pytest.mark.parametrize("for_people", [True, False])
def test_what_a_librarys_exception_quotes_is_not_logged_where_requests_are(
    for_people: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("info", program="http", for_people=for_people)
    try:
        raise_about(SECRET)
    except TypeError:
        logging.getLogger("part").exception("unhandled fault")
    written = capsys.readouterr().err
    assert SECRET not in written
    assert all(told in written for told in ("TypeError", "ExceptionGroup", "KeyError", "raise_about"))


def test_where_no_requests_are_a_librarys_message_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", program="worker", for_people=False, holds_requests=False)
    try:
        raise_about("out of memory")
    except TypeError:
        logging.getLogger("part").exception("the worker ends")
    assert records(capsys)[0]["exception"][0]["exc_value"] == "out of memory"


async def test_a_task_that_fails_unseen_is_logged_without_what_it_was_about(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("debug", program="http", for_people=False)

    async def answer(prompt: str) -> None:
        raise_about(prompt)

    tasks = [asyncio.create_task(answer(SECRET))]
    await asyncio.wait(tasks)
    tasks.clear()
    gc.collect()
    [record] = records(capsys)
    assert (record["event"], record["logger"]) == ("Task exception was never retrieved", "asyncio")
    assert SECRET not in json.dumps(record)


async def test_every_record_of_a_request_carries_its_ids_and_none_of_anothers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("info", program="http", for_people=False)
    turn = asyncio.Barrier(2)

    async def answer(request_id: str, **trace: str) -> None:
        with bound_contextvars(request_id=request_id, **trace):
            await turn.wait()
            logging.getLogger("a.library").warning("slow")
            await asyncio.create_task(beside(request_id))

    async def beside(name: str) -> None:
        logging.getLogger("part").info("helped", extra={"num_tokens": 3, "name_": name})

    await asyncio.gather(answer("r1", trace_id="f" * 32), answer("r2"))
    logging.getLogger("part").info("idle")
    written = records(capsys)
    ids = [(each["event"], each.get("request_id"), each.get("trace_id")) for each in written]
    assert sorted(ids[:-1]) == [
        ("helped", "r1", "f" * 32),
        ("helped", "r2", None),
        ("slow", "r1", "f" * 32),
        ("slow", "r2", None),
    ]
    assert ids[-1] == ("idle", None, None)


def test_a_warning_of_python_is_a_record_too(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logging("info", program="http", for_people=False)
        warnings.warn("this goes away soon", DeprecationWarning, stacklevel=1)
    [record] = records(capsys)
    assert (record["logger"], record["level"]) == ("py.warnings", "warning")
    assert "this goes away soon" in record["event"]
