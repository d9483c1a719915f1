"""``/admin/prefixes``, ``/admin/prefixes/hot`` and ``/admin/warm``: what they take, refuse and never repeat."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support_api import error_of, http
from support_fake_client import VOCAB_SIZE, FakeClient

from sapwood_contract.http import (
    ADMIN_HOT_PREFIXES,
    ADMIN_PREFIXES,
    ADMIN_WARM,
    MAX_HOT_TOKENS,
    HotPrefix,
    HotPrefixes,
)
from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.warming import WarmPrefix

ADDRESS = {"Host": "127.0.0.1:8001"}


def body(*prefixes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model_revision": "revision", "prefixes": list(prefixes), **fields}


def prefix(**fields: Any) -> dict[str, Any]:
    return {"token_ids": [1, 2, 3], "worth_tokens": 4.5, **fields}


async def test_what_one_engine_answers_another_takes_as_it_is() -> None:
    giving, taking = FakeClient(), FakeClient()
    async with http(build_admin_app(giving)) as here, http(build_admin_app(taking)) as there:
        hot = await here.get(f"{ADMIN_HOT_PREFIXES}?limit=3&max_tokens=10", headers=ADDRESS)
        assert giving.admin_calls == [("hot", {"max_prefixes": 3, "max_tokens": 10})]
        assert HotPrefixes(**{**hot.json(), "prefixes": ()}) == HotPrefixes("revision", ())
        answer = await there.post(ADMIN_WARM, json=hot.json())
    assert answer.json() == {"state": "ready", "num_waiting": 1, "num_done": 0, "num_dropped": 0}
    expected = WarmPrefix(Namespace("revision"), (1, 2), 1.5, ((2, 0.75),))
    assert taking.admin_calls == [("warm", {"prefixes": [expected], "is_last": True})]
    assert set(hot.json()["prefixes"][0]) == set(HotPrefix.__dataclass_fields__)


async def test_a_namespace_is_that_of_requests_that_name_the_same() -> None:
    client = FakeClient()
    fields = {"extra_key": "e", "cache_salt": "s", "tenant": "tenant:team/a", "adapter": None}
    async with http(build_admin_app(client)) as admin:
        assert (await admin.post(ADMIN_WARM, json=body(prefix(**fields), is_last=False))).status_code == 200
    namespace = Namespace("revision", None, "e", "s", "tenant:team/a")
    expected = {"prefixes": [WarmPrefix(namespace, (1, 2, 3), 4.5)], "is_last": False}
    assert client.admin_calls == [("warm", expected)]


async def test_token_ids_of_another_revision_are_a_conflict_that_names_both() -> None:
    client = FakeClient()
    async with http(build_admin_app(client)) as admin:
        answer = await admin.post(ADMIN_WARM, json={**body(prefix()), "model_revision": "another"})
    error = error_of(answer, 409)
    assert (error["code"], error["param"]) == ("other_model_revision", "model_revision")
    assert "'another'" in error["message"]
    assert "'revision'" in error["message"]
    assert client.admin_calls == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": [5, VOCAB_SIZE]}, "prefixes.1.token_ids.1"),
        ({"token_ids": [5, -1]}, "prefixes.1.token_ids.1"),
        ({"token_ids": [5, 1.5]}, "prefixes.1.token_ids.1"),
        ({"token_ids": [5, "word"]}, "prefixes.1.token_ids.1"),
        ({"token_ids": []}, "prefixes.1.token_ids"),
        ({"token_ids": "word"}, "prefixes.1.token_ids"),
        ({"worth_tokens": -1}, "prefixes.1.worth_tokens"),
        ({"parts": [[0, 1.0]]}, "prefixes.1.parts.0.0"),
        ({"parts": [[1, -1.0]]}, "prefixes.1.parts.0.1"),
        ({"parts": [["1", 1.0]]}, "prefixes.1.parts.0.0"),
        ({"parts": [[1]]}, "prefixes.1.parts.0.1"),
        ({"parts": [4]}, "prefixes.1.parts.0"),
        ({"adapter": "word"}, "prefixes.1.adapter"),
        ({"tenant": ""}, "prefixes.1.tenant"),
        ({"cache_salt": "word" * 100}, "prefixes.1.cache_salt"),
        ({"words": "word"}, "prefixes.1.words"),
    ],
)
async def test_what_cannot_be_computed_is_refused_by_the_name_of_its_field_and_nothing_of_it_is_quoted(
    fields: dict[str, Any], param: str
) -> None:
    client = FakeClient()
    async with http(build_admin_app(client)) as admin:
        error = error_of(await admin.post(ADMIN_WARM, json=body(prefix(), prefix(**fields))))
    assert error["param"] == param
    assert "'word" not in error["message"]
    assert client.admin_calls == []


async def test_more_tokens_than_one_call_takes_are_refused_with_both_numbers_and_as_many_are_taken() -> None:
    client = FakeClient()
    half = prefix(token_ids=[1_0] * (MAX_HOT_TOKENS // 2))
    async with http(build_admin_app(client)) as admin:
        error = error_of(await admin.post(ADMIN_WARM, json=body(half, half, prefix())))
        assert error["param"] == "prefixes"
        assert str(MAX_HOT_TOKENS) in error["message"]
        assert str(MAX_HOT_TOKENS + 3) in error["message"]
        widest = json.dumps(body(half, half)).replace("10", "0000999"[-3:])
        assert (await admin.post(ADMIN_WARM, content=widest, headers={"Content-Type": "application/json"})).is_success


@pytest.mark.parametrize("query", ["limit=-1", "limit=100000", "max_tokens=-1", f"max_tokens={MAX_HOT_TOKENS + 1}"])
async def test_limits_out_of_range_are_refused_by_name(query: str) -> None:
    async with http(build_admin_app(FakeClient())) as admin:
        error = error_of(await admin.get(f"{ADMIN_HOT_PREFIXES}?{query}", headers=ADDRESS))
    assert error["param"] == query.partition("=")[0]


async def test_while_the_model_loads_there_is_nothing_to_tell_and_nothing_is_taken_but_the_state_is_told() -> None:
    client = FakeClient(capacity=None, state="loading")
    async with http(build_admin_app(client)) as admin:
        for path in (ADMIN_PREFIXES, ADMIN_HOT_PREFIXES):
            assert error_of(await admin.get(path, headers=ADDRESS), 503)["code"] == "loading"
        assert error_of(await admin.post(ADMIN_WARM, json=body()), 503)["code"] == "loading"
        assert (await admin.get(ADMIN_WARM)).json()["state"] == "loading"


async def test_without_keys_tokens_are_told_to_who_calls_by_address_and_never_to_a_page() -> None:
    client = FakeClient()
    async with http(build_admin_app(client)) as admin:
        for headers in ({"Host": "pages.example"}, {**ADDRESS, "Origin": "http://pages.example"}):
            assert error_of(await admin.get(ADMIN_HOT_PREFIXES, headers=headers), 403)["code"] == "origin_not_allowed"
        assert client.admin_calls == []
        for host in ("127.0.0.1", "localhost:8001", "[::1]:8001", "10.0.0.7:8001"):
            assert (await admin.get(ADMIN_HOT_PREFIXES, headers={"Host": host})).status_code == 200
        error = error_of(await admin.post(ADMIN_WARM, json=body(), headers={"Origin": "http://pages.example"}), 403)
        assert error["code"] == "origin_not_allowed"


async def test_names_of_pages_have_no_token() -> None:
    async with http(build_admin_app(FakeClient())) as admin:
        answer = (await admin.get(ADMIN_PREFIXES)).json()
    assert answer == {
        "model_revision": "revision",
        "page_size": 2,
        "nodes": [{"blocks": "AAAAAAAAAAA=", "num_tokens": 2, "worth_tokens": 1.5}],
        "is_whole": True,
    }


async def test_a_method_that_the_path_does_not_have_is_told_both_that_it_has() -> None:
    async with http(build_admin_app(FakeClient())) as admin:
        answer = await admin.delete(ADMIN_WARM)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
