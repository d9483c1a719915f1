"""How services scale, in the gateway's console: whom it asks, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from support_gateway import CHAT, Gateway, gateway, nobody, routes, serving

from sapwood_gateway.shell.options import parse

SERVICE = "team/chat"
NOT_LEADING = (503, {"reason": "NotLeading", "message": "not leading"})


class Operator:
    """Answers in turn what it was given, the last for ever; remembers what it was asked."""

    def __init__(self, *answers: tuple[int, dict[str, Any]]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return web.json_response(body, status=status)


@asynccontextmanager
async def asking(operator: Operator, **settings: Any) -> AsyncIterator[Gateway]:
    app = web.Application()
    app.router.add_get("/{path:.*}", operator.handle)
    async with (
        serving(app) as url,
        gateway(routes(), has_console=True, operator_url=url, **settings) as running,
    ):
        yield running


async def get(running: Gateway, path: str, **query: str) -> tuple[int, Any]:
    async with running.client.get(path, params=query) as answer:
        assert answer.status != 200 or answer.headers["X-Content-Type-Options"] == "nosniff"
        return answer.status, await answer.json()


async def test_without_an_operator_the_page_is_told_that_nobody_scales() -> None:
    async with gateway(routes(), has_console=True) as running:
        assert await get(running, "/ui/data/scaling") == (200, {"scales": False, "services": [SERVICE]})
        for path in ("/ui/data/scaling", "/ui/data/what-if"):
            status, told = await get(running, path, service=SERVICE)
            assert (status, told["error"]["code"]) == (404, "no_operator")


async def test_the_operator_is_asked_about_a_service_and_what_it_answers_comes_back() -> None:
    operator = Operator((200, {"desired": 2}))
    async with asking(operator) as running:
        assert await get(running, "/ui/data/scaling") == (200, {"scales": True, "services": [SERVICE]})
        assert await get(running, "/ui/data/scaling", service=SERVICE) == (200, {"desired": 2})
        found = await get(running, "/ui/data/what-if", service=SERVICE, replicas="3", memory="1.5", other="x")
        assert found == (200, {"desired": 2})
    about = f"namespace={CHAT.namespace}&name={CHAT.name}"
    assert operator.asked == [f"/autoscaling?{about}", f"/what-if?{about}&replicas=3&memory=1.5"]


async def test_an_operator_that_does_not_lead_is_asked_again_since_the_next_answer_may_be_the_leaders() -> None:
    operator = Operator(NOT_LEADING, NOT_LEADING, (200, {"desired": 2}))
    async with asking(operator) as running:
        assert await get(running, "/ui/data/scaling", service=SERVICE) == (200, {"desired": 2})
    assert len(operator.asked) == 3


@pytest.mark.parametrize(
    ("answer", "status", "code", "words"),
    [
        (NOT_LEADING, 503, "not_leading", "No operator leads just now."),
        ((422, {"reason": "NotScaled", "message": "it is not scaled"}), 422, "NotScaled", "it is not scaled"),
        ((500, {"oops": 1}), 502, "operator_failed", "no answer that can be shown"),
        ((404, {}), 502, "operator_failed", "no answer that can be shown"),
    ],
)
async def test_why_there_is_no_answer_is_said(
    answer: tuple[int, dict[str, Any]], status: int, code: str, words: str
) -> None:
    async with asking(Operator(answer)) as running:
        found, told = await get(running, "/ui/data/scaling", service=SERVICE)
    assert (found, told["error"]["code"]) == (status, code)
    assert words in told["error"]["message"]


async def test_an_operator_that_is_away_is_no_fault_of_the_gateway() -> None:
    async with gateway(routes(), has_console=True, operator_url=nobody().url) as running:
        status, told = await get(running, "/ui/data/what-if", service=SERVICE, replicas="3")
    assert (status, told["error"]["code"]) == (502, "operator_unreachable")


async def test_only_services_of_the_gateway_are_asked_about() -> None:
    operator = Operator((200, {}))
    async with asking(operator) as running:
        for service in ("", "team", "other/chat", "team/chat/x"):
            status, told = await get(running, "/ui/data/what-if", service=service)
            assert (status, told["error"]["param"]) == (404, "service")
    assert operator.asked == []


@pytest.mark.parametrize("path", ["/ui/data/scaling", "/ui/data/what-if"])
@pytest.mark.parametrize("query", [{}, {"service": SERVICE}])
async def test_who_has_no_admin_key_makes_nobody_ask(path: str, query: dict[str, str]) -> None:
    operator = Operator((200, {}))
    async with asking(operator, admin_keys=frozenset({"key"})) as running:
        status, told = await get(running, path, **query)
    assert (status, told["error"]["code"], operator.asked) == (401, "invalid_api_key", [])


def test_the_operators_address_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([]).operator_url is None
    url = "http://sapwood-operator.sapwood.svc:80"
    assert parse([f"--operator-url={url}"]).operator_url == url
    with pytest.raises(SystemExit):
        parse(["--operator-url=sapwood-operator"])
    assert "--operator-url: 'sapwood-operator' is not an address" in capsys.readouterr().err
