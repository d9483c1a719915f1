"""``POST /admin/flush``: everything, or one namespace, whose salt is a secret."""

from __future__ import annotations

from typing import Any

import pytest
from support_api import TEXT, error_of, http, text_body
from support_fake_client import FakeClient
from support_service import thread_engine

from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.api.app import build_app

NOTHING: dict[str, Any] = {"adapter_id": None, "extra_key": None, "tenant_salt": None, "tenant": None}


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (None, {}),
        ({}, {}),
        ({"extra_key": "a"}, NOTHING | {"extra_key": "a"}),
        ({"extra_key": None}, NOTHING),
        (
            {"adapter": "x", "extra_key": "a", "cache_salt": "s", "tenant": "tenant:team/alpha"},
            {"adapter_id": "x", "extra_key": "a", "tenant_salt": "s", "tenant": "tenant:team/alpha"},
        ),
    ],
)
async def test_a_body_names_one_namespace_and_none_names_everything(
    body: dict[str, Any] | None, asked: dict[str, Any]
) -> None:
    client = FakeClient()
    async with http(build_admin_app(client)) as admin:
        answer = await (admin.post("/admin/flush") if body is None else admin.post("/admin/flush", json=body))
    assert answer.status_code == 200
    assert client.admin_calls == [("flush", asked)]


async def test_an_unknown_field_is_refused_by_name_and_nothing_is_flushed() -> None:
    client = FakeClient()
    async with http(build_admin_app(client)) as admin:
        error = error_of(await admin.post("/admin/flush", json={"tenants": "a"}))
        assert error["param"] == "tenants"
        assert error_of(await admin.post("/admin/flush", json={"extra_key": 1}))["param"] == "extra_key"
    assert client.admin_calls == []


@pytest.mark.parametrize("salt", [8731, "8731" * 100, ["8731"], ""])
async def test_a_salt_that_is_refused_is_not_quoted(salt: Any) -> None:
    async with http(build_admin_app(FakeClient())) as admin:
        answer = await admin.post("/admin/flush", json={"cache_salt": salt})
    assert error_of(answer)["param"] == "cache_salt"
    assert "8731" not in answer.text


async def test_the_flush_of_one_namespace_leaves_the_others_and_tells_its_tokens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        thread_engine() as engine,
        http(build_app(engine.client)) as api,
        http(build_admin_app(engine.client)) as admin,
    ):

        async def cached(**fields: str) -> int:
            body = text_body(model="fake", prompt="a prompt of some tokens", temperature=0, max_tokens=1, **fields)
            usage = (await api.post(TEXT, json=body)).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        await cached()
        await cached(cache_salt="hunter2")
        answer = await admin.post("/admin/flush", json={"cache_salt": "hunter2"})
        assert answer.json() == {"num_tokens": 23}
        assert "hunter2" not in caplog.text
        counted = [line for line in (await admin.get("/metrics")).text.splitlines() if 'reason="flush"' in line]
        assert [line.rpartition(" ")[2] for line in counted] == ["23.0"]
        assert await cached(cache_salt="hunter2") == 0
        assert await cached() == 22
        assert (await admin.post("/admin/flush", json={"extra_key": "nobody"})).json() == {"num_tokens": 0}
        assert (await admin.post("/admin/flush", json={"extra_key": None})).json() == {"num_tokens": 23}
