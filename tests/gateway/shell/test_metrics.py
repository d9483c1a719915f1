"""The gateway's metrics: what clients make up makes no series, and what became of a request is told."""

from __future__ import annotations

import aiohttp
from support_gateway import (
    CHAT,
    MODEL,
    Gateway,
    admin_app,
    behind,
    drop,
    echo,
    gateway,
    routes,
    serving,
    status,
    upstream,
)
from support_series import Scrape, scrape_of

from sapwood_gateway.core.routes import Routes, Service, ServiceKey
from sapwood_gateway.core.tenants import Tenant, Tenants, key_digest

PATH = "/v1/chat/completions"
OTHER = ServiceKey("lab", "code")


def scraped(running: Gateway) -> Scrape:
    return scrape_of(running.metrics.render().body.decode())


async def test_what_clients_make_up_makes_at_most_one_series_more_of_each_name() -> None:
    async with behind(echo) as (running, _):
        async with running.client.post(PATH, json={"model": MODEL}) as answer:
            assert answer.status == 200
        before = scraped(running).num_series()
        for number in range(1000):
            odd = f"made-up-{number}"
            headers = {"X-Session-Id": odd, "X-Request-Id": odd, "User-Agent": odd, "Authorization": f"Bearer {odd}"}
            path = f"/{odd}?{odd}={odd}" if number % 2 else PATH
            fields = {"user": odd, "cache_salt": odd, "prompt_cache_key": odd}
            async with running.client.post(path, json={"model": odd} | fields, headers=headers) as answer:
                assert answer.status == 404
        after = scraped(running)
    assert all(num - before.get(name, 0) <= 1 for name, num in after.num_series().items())
    assert after.by("sapwood_gateway_requests_total", "code") == {"200": 1, "404": 500}
    assert after.value("sapwood_gateway_requests_total", inference_service="", model="", code="404") == 500


async def test_each_code_that_alerts_read_is_at_zero_before_the_first_answer_of_a_model_that_is_served() -> None:
    async with gateway(routes(models=(MODEL, "other"))) as running:
        before = scraped(running)
        for model in (MODEL, "other"):
            own = {"inference_service": str(CHAT), "model": model}
            codes = {
                dict(labels)["code"]: value
                for (name, labels), value in before.samples.items()
                if name == "sapwood_gateway_requests_total" and own.items() <= set(labels)
            }
            assert codes == dict.fromkeys(("200", "429", "499", "500", "502", "503", "504"), 0)
        async with running.client.post(PATH, json={"model": MODEL}) as answer:
            assert answer.status == 503
        after = scraped(running)
    assert after.by("sapwood_gateway_requests_total", "code") == {"503": 1}
    assert after.num_series() == before.num_series()


async def test_a_service_that_is_discovered_later_has_its_series_from_the_next_scrape_on() -> None:
    async with gateway(routes()) as running:
        running.fleet.update(Routes({OTHER: Service(OTHER, ("late",))}, {}))
        assert (
            scraped(running).value(
                "sapwood_gateway_requests_total", inference_service=str(OTHER), model="late", code="503"
            )
            == 0
        )


async def test_tenants_are_in_no_series() -> None:
    key = "sk-of-a-tenant"
    tenants = Tenants([Tenant(namespace="team", name="somebody", key_digests=frozenset({key_digest(key)}))])
    async with upstream(echo) as server:
        keyed = Routes({CHAT: Service(CHAT, (MODEL,), authentication="ApiKey")}, {CHAT: (server.replica(),)})
        async with gateway(keyed, tenants=tenants, secret=b"s" * 32) as running:
            for shown, code in ((key, 200), ("wrong", 401)):
                headers = {"Authorization": f"Bearer {shown}"}
                async with running.client.post(PATH, json={"model": MODEL}, headers=headers) as answer:
                    assert answer.status == code
            text = running.metrics.render().body.decode()
    assert "somebody" not in text
    assert 'sapwood_gateway_rejected_total{reason="auth"} 1' in text


async def test_of_two_services_with_one_model_each_has_its_own_count() -> None:
    async with upstream(echo) as good, upstream(status(503)) as bad:
        services = {key: Service(key, (MODEL,)) for key in (CHAT, OTHER)}
        both = Routes(services, {CHAT: (good.replica("a"),), OTHER: (bad.replica("b"),)})
        async with gateway(both) as running:
            for key, code in ((CHAT, 200), (OTHER, 503)):
                headers = {"Host": f"{key.name}.{key.namespace}"}
                async with running.client.post(PATH, json={"model": MODEL}, headers=headers) as answer:
                    assert answer.status == code
            counted = scraped(running)
    labels = [{"inference_service": "team/chat", "code": "200"}, {"inference_service": "lab/code", "code": "503"}]
    assert [counted.value("sapwood_gateway_requests_total", model=MODEL, **each) for each in labels] == [1, 1]


async def test_a_request_that_one_replica_failed_and_another_answered_counts_once() -> None:
    async with behind(drop, echo) as (running, _):
        for _turn in range(4):
            async with running.client.post(PATH, json={"model": MODEL}) as answer:
                assert answer.status == 200
        counted = scraped(running)
    assert counted.by("sapwood_gateway_requests_total", "code") == {"200": 4}
    assert counted.total("sapwood_gateway_attempt_failures_total") > 0


async def test_a_fault_of_the_gateway_counts_as_one() -> None:
    unusable = Routes({CHAT: Service(CHAT, (MODEL,), hosts=None)}, {})  # type: ignore[arg-type]  # what no discovery gives
    async with gateway(unusable) as running:
        async with running.client.post(PATH, json={"model": MODEL}, headers={"Host": "chat.example.com"}) as answer:
            assert answer.status == 500
        assert scraped(running).by("sapwood_gateway_requests_total", "code") == {"500": 1}


async def test_a_scraper_gets_openmetrics_where_it_asks_for_it() -> None:
    async with gateway(routes()) as running:
        admin = admin_app(running)
        async with serving(admin) as url, aiohttp.ClientSession(url) as client:
            for accept, kind in (
                ("*/*", "text/plain"),
                ("application/openmetrics-text", "application/openmetrics-text"),
            ):
                async with client.get("/metrics", headers={"Accept": accept}) as answer:
                    assert answer.content_type == kind
                    assert (await answer.text()).endswith("# EOF\n") == (kind != "text/plain")
