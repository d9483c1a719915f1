"""A question to an admin address has an answer, or a line that says what to do."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from support_api import served
from support_fake_client import FakeClient

from sapwood_contract.http import ADMIN_ABORT, ADMIN_CACHE, ADMIN_LOAD, METRICS
from sapwood_engine.api.admin import build_admin_app
from sapwood_tools.admin_client import Unanswered, admin_client, admin_url, key_in_file


async def why_not(url: str, path: str = ADMIN_LOAD, *, key: str | None = None) -> str:
    async with admin_client(url, key=key, timeout_seconds=5) as client:
        with pytest.raises(Unanswered) as error:
            await client.json(path)
    return str(error.value)


async def test_an_engine_answers_in_json_and_text_and_to_posts() -> None:
    async with (
        served(build_admin_app(FakeClient(), admin_keys=frozenset({"right"}))) as url,
        admin_client(url + "/", key="right", timeout_seconds=5) as client,
    ):
        assert (await client.json(ADMIN_CACHE, max_nodes=5)) == {"action": "cache", "max_nodes": 5}
        assert (await client.text(METRICS)).startswith("# HELP")
        assert (await client.post(ADMIN_ABORT, {"request_id": "a"})) == {"num_aborted": 0}


@pytest.mark.parametrize("key", [None, "wrong"])
async def test_who_shows_no_key_that_is_known_is_told_how_to_show_one(key: str | None) -> None:
    async with served(build_admin_app(FakeClient(), admin_keys=frozenset({"right"}))) as url:
        told = await why_not(url, key=key)
    assert told == "answers 401 Unauthorized: give a key of its admin API with --key-file"


async def test_what_the_engine_says_of_a_refusal_is_told() -> None:
    async with served(build_admin_app(FakeClient(), credentials=frozenset({"of the gateway"}))) as url:
        told = await why_not(url, ADMIN_CACHE)
    assert told.startswith("answers 403 Forbidden: This engine was started without keys of the admin API")


async def test_an_address_of_something_else_is_told() -> None:
    async with served(build_admin_app(FakeClient())) as url:
        told = await why_not(url, METRICS)
    assert told == "answers with something that is not JSON: is it an admin address?"


async def test_nobody_at_the_address_is_told() -> None:
    assert await why_not("http://127.0.0.1:9") == "does not answer: Connection refused"


@pytest.mark.parametrize("text", ["127.0.0.1:8001", "ftp://host", "http://", "http:///"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not an address"):
        admin_url(text)


def test_the_first_key_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("\n first \nsecond\n")
    assert key_in_file(str(path)) == "first"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"\n", "begins with no key"),
        (b"\xffsecret", "not UTF-8"),
        ("schlüssel".encode(), "ASCII"),
    ],
)
def test_a_file_without_a_key_is_refused_without_quoting_it(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(argparse.ArgumentTypeError, match=why) as error:
        key_in_file(str(path))
    assert "secret" not in str(error.value)
