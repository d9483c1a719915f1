"""What clients, probes and scrapers find at the gateway's two ports."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from support_gateway import CHAT, MODEL, Gateway, admin_app, behind, echo, gateway, routes, serving

from sapwood_contract.metrics import GATEWAY_ROUTES, SERIES
from sapwood_gateway.core.routes import Routes, Service, ServiceKey
from sapwood_gateway.shell.app import Traffic, build_app
from sapwood_gateway.shell.auth import Auth

CODE = ServiceKey("lab", "code")
ROUTES = Routes({CHAT: Service(CHAT, (MODEL, "sql")), CODE: Service(CODE, ("coder",))}, {})


@pytest.fixture
async def running() -> AsyncIterator[Gateway]:
    async with gateway(ROUTES) as made:
        yield made


async def error_code(response: aiohttp.ClientResponse) -> str:
    error = json.loads(await response.read())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["code"])


async def test_the_models_are_those_of_all_services_with_or_without_replicas(running: Gateway) -> None:
    async with running.client.get("/v1/models") as response:
        answer = await response.json()
    assert answer["object"] == "list"
    assert [card["id"] for card in answer["data"]] == ["coder", MODEL, "sql"]
    assert {card["object"] for card in answer["data"]} == {"model"}


async def test_at_a_services_own_name_the_models_are_its_own(running: Gateway) -> None:
    async with running.client.get("/v1/models", headers={"Host": "code.lab.svc.cluster.local"}) as response:
        assert [card["id"] for card in (await response.json())["data"]] == ["coder"]


async def test_one_model_is_found_by_its_name_even_with_a_slash(running: Gateway) -> None:
    async with running.client.get(f"/v1/models/{MODEL}") as response:
        assert (await response.json())["id"] == MODEL
    async with running.client.get("/v1/models/other") as response:
        assert (response.status, await error_code(response)) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/health", 404, "not_found"),
        ("GET", "/livez", 404, "not_found"),
        ("GET", "/readyz", 404, "not_found"),
        ("GET", "/metrics", 404, "not_found"),
        ("GET", "/openapi.json", 404, "not_found"),
        ("GET", "/admin/load", 404, "not_found"),
        ("GET", "/admin/cache", 404, "not_found"),
        ("GET", "/admin/demand", 404, "not_found"),
        ("GET", "/admin/trace", 404, "not_found"),
        ("POST", "/admin/flush", 404, "not_found"),
        ("POST", "/admin/drain", 404, "not_found"),
        ("POST", "/admin/abort", 404, "not_found"),
        ("POST", "/v1/completions/../../admin/flush", 404, "not_found"),
        ("POST", "/v1/completions%2f..%2f..%2fadmin%2fflush", 404, "not_found"),
    ],
)
async def test_everything_else_of_an_engine_is_out_of_reach(method: str, path: str, status: int, code: str) -> None:
    async with (
        behind(echo) as (running, [engine]),
        running.client.request(method, path, json={"model": MODEL}) as response,
    ):
        assert (response.status, await error_code(response)) == (status, code)
        assert response.headers["X-Request-Id"]
        assert engine.bodies == []


async def test_the_public_port_has_these_routes_and_no_other(running: Gateway) -> None:
    app = build_app(running.fleet, running.proxy, traffic=Traffic(), auth=Auth())
    found = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource is not None}
    assert found == {
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/v1/models"),
        ("HEAD", "/v1/models"),
        ("GET", "/v1/models/{model}"),
        ("HEAD", "/v1/models/{model}"),
    }


async def test_an_answer_to_a_wrong_method_says_which_are_right(running: Gateway) -> None:
    async with running.client.get("/tokenize") as response:
        assert response.headers["Allow"] == "POST"


async def test_what_the_server_refuses_before_us_is_answered_too(running: Gateway) -> None:
    for path in ("/v1/completions", "/v1/nothing"):
        async with running.client.post(path, headers={"Expect": "nonsense"}) as response:
            assert response.status == 417
            assert response.headers["X-Request-Id"]


async def test_a_fault_of_the_gateways_own_is_an_error_object_and_tells_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unusable = Routes({CHAT: Service(CHAT, None)}, {})  # type: ignore[arg-type]  # what no discovery gives
    async with gateway(unusable) as running, running.client.get("/v1/models") as response:
        assert (response.status, await error_code(response)) == (500, "internal_error")
        assert "NoneType" not in await response.text()
    assert "unhandled fault" in caplog.text


async def test_a_draining_gateway_answers_and_closes_the_connection(running: Gateway) -> None:
    running.traffic.is_draining = True
    async with running.client.get("/v1/models") as response:
        assert response.status == 200
        assert response.headers["Connection"] == "close"


async def test_traffic_is_drained_when_the_last_request_has_left() -> None:
    traffic = Traffic()
    await traffic.drained()
    traffic.enter()
    traffic.enter()
    traffic.leave()
    traffic.leave()
    await traffic.drained()


# --- probes and metrics


async def test_probes_follow_discovery_and_draining(running: Gateway) -> None:
    discovered = False
    app = admin_app(running, is_discovered=lambda: discovered)
    async with serving(app) as url, aiohttp.ClientSession(url) as client:

        async def states() -> list[tuple[int, str]]:
            answers = []
            for path in ("/livez", "/readyz"):
                async with client.get(path) as response:
                    answers.append((response.status, (await response.json())["state"]))
            return answers

        assert await states() == [(200, "discovering"), (503, "discovering")]
        discovered = True
        assert await states() == [(200, "ready"), (200, "ready")]
        running.traffic.is_draining = True
        assert await states() == [(200, "draining"), (503, "draining")]


async def test_the_metrics_are_those_of_the_contract(running: Gateway) -> None:
    app = admin_app(running)
    async with serving(app) as url, aiohttp.ClientSession(url) as client, client.get("/metrics") as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = await response.text()
    declared = {series.name for series in SERIES if series.program == "gateway"}
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")} == declared
    assert running.series("sapwood_gateway_route_total") == {f'{{result="{route}"}}': 0 for route in GATEWAY_ROUTES}


async def test_requests_are_counted_by_service_model_and_code_and_timed() -> None:
    async with behind(echo, echo) as (running, _):
        for _turn in range(3):
            async with running.client.post("/tokenize", json={"model": MODEL}) as response:
                await response.read()
        labels = f'{{code="200",inference_service="{CHAT}",model="{MODEL}"}}'
        assert running.counted("sapwood_gateway_requests_total") == {labels: 3}
        assert running.series("sapwood_gateway_route_total")['{result="least_load"}'] == 3
        assert running.series("sapwood_gateway_overhead_seconds_count") == {"": 3}
        assert running.series("sapwood_gateway_replicas")['{state="fit"}'] == 2


async def test_two_replicas_of_an_idle_service_share_its_requests() -> None:
    async with behind(echo, echo) as (running, [a, b]):
        for _turn in range(6):
            async with running.client.post("/tokenize", json={"model": MODEL}) as response:
                await response.read()
        assert (len(a.bodies), len(b.bodies)) == (3, 3)


async def test_the_service_without_replicas_does_not_hide_the_one_with_some() -> None:
    async with behind(echo) as (running, [engine]):
        both = Routes({**running.fleet.routes.services, CODE: Service(CODE, ("coder",))}, running.fleet.routes.replicas)
        running.fleet.update(both)
        async with running.client.post("/tokenize", json={"model": "coder"}) as response:
            assert (response.status, await error_code(response)) == (503, "no_replica_ready")
        async with running.client.post("/tokenize", json={"model": MODEL}) as response:
            assert response.status == 200
        assert len(engine.bodies) == 1


async def test_a_service_that_has_gone_is_not_found(running: Gateway) -> None:
    running.fleet.update(routes())
    async with running.client.post("/tokenize", json={"model": "coder"}) as response:
        assert (response.status, await error_code(response)) == (404, "model_not_found")
