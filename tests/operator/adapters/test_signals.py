"""Engines, Prometheus and gateways that answer anything: what is sound arrives, all else is unknown and told why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

import aiohttp
import pytest
from kubernetes.client import ApiClient, Configuration
from support_answers import StandIn
from support_engine_page import engine_page

from sapwood_contract.http import GATEWAY_DEMAND, GatewayDemand, ServiceDemand
from sapwood_operator.adapters.asking import client_session
from sapwood_operator.adapters.cluster import Cluster
from sapwood_operator.adapters.cluster_gateways import OLDEST_SECONDS, ClusterGateways
from sapwood_operator.adapters.engine_signals import EngineSignals, read_text
from sapwood_operator.adapters.gateway_demand import GatewayDemands
from sapwood_operator.adapters.prometheus_signals import PrometheusSignals
from sapwood_operator.autoscaling.attention import Watched
from sapwood_operator.autoscaling.demand import Gateway, NoGateways
from sapwood_operator.autoscaling.scrapes import Kv, NoScrape, Scrape
from sapwood_operator.autoscaling.signals import EnginePod, Heard
from sapwood_tools.bench.servers import free_port


def chat(*urls: str) -> Watched:
    pods = tuple(
        EnginePod(uid=f"uid-{number}", name=f"chat-{number}", url=url, after=100.0) for number, url in enumerate(urls)
    )
    return Watched(namespace="team", name="chat", pods=pods, scales=True, is_urgent=False)


def why(heard: Heard) -> str:
    assert heard.scrapes == ()
    assert isinstance(heard.problem, NoScrape)
    return heard.problem.why


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with client_session() as session:
        yield session


async def heard_of(session: aiohttp.ClientSession, *answers: StandIn) -> list[Heard]:
    """Ask stand-ins for engines."""
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(each.serving()) for each in answers]
        found = await EngineSignals(session, clock=lambda: 7.0).ask(chat(*urls))
    return [found[f"uid-{number}"] for number in range(len(answers))]


def test_an_engines_page_is_read_as_it_is_written() -> None:
    scraped = read_text(7.0, engine_page().decode())
    assert isinstance(scraped, Scrape), scraped
    assert (scraped.at, scraped.state, scraped.kv) == (7.0, "ready", Kv(1600, 300))
    assert (scraped.running, scraped.waiting, scraped.waiting_tokens) == (3, 2, 700)
    assert (scraped.cost, scraped.curve) == (None, None)


async def test_engines_are_asked_and_each_has_its_answer(session: aiohttp.ClientSession) -> None:
    good, bad = StandIn(engine_page()), StandIn(status=500)
    found = await heard_of(session, good, bad)
    assert found[0] == Heard((read_text(7.0, engine_page().decode()),))  # type: ignore[arg-type]
    assert why(found[1]) == "it answers 500 Internal Server Error"
    assert good.asked == ["/metrics"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "does not say"),
        (b"<html>sapwood_requests_running{</html>", "does not say"),
        (engine_page().replace(b'sapwood_requests_running{model="m"} 3', b"sapwood_requests_running{ 3"), "understood"),
        (engine_page().replace(b'running{model="m"} 3.0', b'running{model="m"} NaN'), "requests_running is nan"),
        (engine_page().replace(b'running{model="m"} 3.0', b'running{model="m"} +Inf'), "requests_running is inf"),
        (engine_page().replace(b'running{model="m"} 3.0', b'running{model="m"} many'), "understood"),
        (engine_page().replace(b'running{model="m"} 3.0', b""), "does not say sapwood_requests_running"),
        (b"\xff\xfe" + b"sapwood_requests_running 1", "does not say"),
        (engine_page() + b"# padding\n" * 30_000, "it answers with more than 256 KiB"),
    ],
)
async def test_g01_a_page_that_is_not_whole_is_unknown(session: aiohttp.ClientSession, body: bytes, told: str) -> None:
    [found] = await heard_of(session, StandIn(body))
    assert told in why(found)


async def test_an_engine_that_is_not_there_or_has_no_address_is_unknown(session: aiohttp.ClientSession) -> None:
    found = await EngineSignals(session).ask(chat(f"http://127.0.0.1:{free_port()}", ""))
    assert [why(each) for each in found.values()] == ["it does not answer: Connection refused", "it has no address yet"]


async def test_whoever_takes_a_question_and_gives_no_answer_is_unknown(session: aiohttp.ClientSession) -> None:
    silent = StandIn(is_silent=True)
    async with silent.serving() as url:
        engines, prometheus, gateways = await asyncio.gather(
            EngineSignals(session).ask(chat(url)),
            PrometheusSignals(session, url).ask(chat(url)),
            GatewayDemands(session, finding(Gateway("gateway-a", url))).ask(),
        )
    assert why(engines["uid-0"]) == "it does not answer within 2 s"
    assert why(prometheus["uid-0"]) == "Prometheus does not answer within 2 s"
    assert gateways.problems == {"gateway-a": "does not answer within 2 s"}


# --- Prometheus


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (StandIn(status=500), "Prometheus answers 500"),
        (StandIn(b'{"status":"error"}', status=422), "Prometheus answers 422"),
        (StandIn(status=302), "Prometheus answers 302"),
        (StandIn(b""), "not understood"),
        (StandIn(b"<html>"), "not understood"),
        (StandIn(b"[" * 100_000), "not understood"),
        (StandIn(b'{"status":"success","data":{"resultType":"matrix","result":[]}}'), "has nothing of it"),
    ],
)
async def test_g01_what_prometheus_does_not_say_is_unknown(
    session: aiohttp.ClientSession, answer: StandIn, told: str
) -> None:
    async with answer.serving() as url:
        found = await PrometheusSignals(session, f"{url}/").ask(chat("", ""))
    assert [told in why(each) for each in found.values()] == [True, True]
    assert [path.partition("?")[0] for path in answer.asked] == ["/api/v1/query"]


# --- gateways


def finding(*gateways: Gateway, no: NoGateways | None = None) -> Any:
    async def find() -> Sequence[Gateway] | NoGateways:
        return no or gateways

    return find


def demand(waiting: int = 2) -> bytes:
    own = ServiceDemand("team", "chat", waiting, 3, 9, 0.0, {"chat-0": 3})
    return json.dumps(asdict(GatewayDemand("e1", (own,))) | {"of_a_later_version": 1}).encode()


async def test_every_gateway_is_asked_and_what_one_does_not_say_is_told(session: aiohttp.ClientSession) -> None:
    good, bad, odd = StandIn(demand()), StandIn(status=503), StandIn(demand(waiting=-1))
    async with good.serving() as first, bad.serving() as second, odd.serving() as third:
        gateways = [Gateway("a", first), Gateway("b", second), Gateway("c", third)]
        found = await GatewayDemands(session, finding(*gateways), clock=lambda: 7.0).ask()
    assert found.at == 7.0
    assert [each.num_waiting for each in found.answers["a"].services] == [2]
    assert found.problems["b"] == "answers 503 Service Unavailable"
    assert "not understood" in found.problems["c"]
    assert good.asked == [GATEWAY_DEMAND]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"epoch":1,"services":[]}', demand().replace(b"3", b'"3"')])
async def test_an_answer_of_another_shape_is_none(session: aiohttp.ClientSession, body: bytes) -> None:
    async with StandIn(body).serving() as url:
        found = await GatewayDemands(session, finding(Gateway("a", url))).ask()
    assert "not understood" in found.problems["a"]


async def test_where_gateways_are_not_known_nobody_is_asked(session: aiohttp.ClientSession) -> None:
    found = await GatewayDemands(session, finding(no=NoGateways("the API server is away"))).ask()
    assert (found.answers, found.problems, found.nobody_asked) == ({}, {}, "the API server is away")


async def test_gateways_are_found_by_their_slices_and_stay_known_while_the_api_server_is_away() -> None:
    endpoint = {"addresses": ["127.0.0.1"], "targetRef": {"name": "gateway-a"}}
    slices = {"metadata": {"resourceVersion": "7"}, "items": [{"addressType": "IPv4", "endpoints": [endpoint]}]}
    api, now = StandIn(status=503), 0.0
    async with api.serving() as url:
        client = ApiClient(Configuration(host=url))
        cluster = Cluster(client, request_timeout_seconds=5.0, on_write=lambda _kind, _verb: None)
        gateways = ClusterGateways(cluster, namespace="edge", service="gateway", admin_port=8081, clock=lambda: now)
        unknown = await gateways.find()
        assert isinstance(unknown, NoGateways)
        assert "the API server does not say which gateways there are" in unknown.why
        api.status, api.body = 200, json.dumps(slices).encode()
        expected = (Gateway("gateway-a", "http://127.0.0.1:8081"),)
        assert await gateways.find() == expected
        num_asked = len(api.asked)
        assert await gateways.find() == expected
        assert len(api.asked) == num_asked
        now, api.status = OLDEST_SECONDS, 503
        assert await gateways.find() == expected
        assert len(api.asked) == num_asked + 1
        now, api.is_silent = OLDEST_SECONDS - 1.0, True
        assert await gateways.find() == expected
        assert len(api.asked) == num_asked + 1, "the question waited for the list, which is made beside it"
        while len(api.asked) == num_asked + 1:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.01)
        await asyncio.to_thread(client.close)
    assert api.asked[0].startswith("/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices?")
    assert "labelSelector=kubernetes.io/service-name%3Dgateway" in api.asked[0].replace("%2F", "/")
