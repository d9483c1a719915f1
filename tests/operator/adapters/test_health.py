"""The operator's own port."""

from __future__ import annotations

import socket

import aiohttp
import pytest

from sapwood_contract.metrics import SERIES
from sapwood_operator.adapters.health import Health, Phase, serve_health
from sapwood_operator.adapters.metrics import OperatorMetrics

LOOPBACK = "127.0.0.1"
PAGE = "<title>Runbooks</title>"


async def ask(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{LOOPBACK}:{port}{path}") as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("phase", "ready"),
    [("starting", 503), ("standby", 200), ("syncing", 503), ("leading", 200), ("stopping", 503)],
)
async def test_an_operator_is_ready_while_it_waits_to_lead_and_once_it_knows_the_cluster(
    phase: Phase, ready: int
) -> None:
    async with serve_health(Health(phase), OperatorMetrics(), runbooks=PAGE, host=LOOPBACK, port=0) as port:
        assert await ask(port, "/readyz") == (ready, f"{phase}\n")
        assert await ask(port, "/healthz") == (200, "ok\n")


async def test_an_operator_whose_watches_are_given_up_is_to_be_started_anew() -> None:
    watched = [True, False]
    async with serve_health(
        Health("leading", watched.pop), OperatorMetrics(), runbooks=PAGE, host=LOOPBACK, port=0
    ) as port:
        assert await ask(port, "/healthz") == (503, "nothing is watched\n")
        assert await ask(port, "/healthz") == (200, "ok\n")


async def test_every_series_of_the_contract_is_there_from_the_first_scrape_on() -> None:
    async with serve_health(Health(), OperatorMetrics(), runbooks=PAGE, host=LOOPBACK, port=0) as port:
        _, text = await ask(port, "/metrics")
    wanted = {series.name for series in SERIES if series.program == "operator"}
    told = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert told == {name.removesuffix("_total") if name not in text else name for name in wanted}


async def test_a_scraper_gets_openmetrics_where_it_asks_for_it() -> None:
    kind = "application/openmetrics-text"
    async with (
        serve_health(Health(), OperatorMetrics(), runbooks=PAGE, host=LOOPBACK, port=0) as port,
        aiohttp.ClientSession(headers={"Accept": kind}) as session,
        session.get(f"http://{LOOPBACK}:{port}/metrics") as answer,
    ):
        assert answer.content_type == kind
        assert (await answer.text()).endswith("# EOF\n")


async def test_the_page_of_runbooks_is_html_that_brings_everything_with_it() -> None:
    async with (
        serve_health(Health("standby"), OperatorMetrics(), runbooks=PAGE, host=LOOPBACK, port=0) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://{LOOPBACK}:{port}/runbooks") as answer,
    ):
        assert (answer.status, answer.content_type, await answer.text()) == (200, "text/html", PAGE)
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")


async def test_a_port_that_is_taken_is_an_error_of_the_system() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken, pytest.raises(OSError, match="address already in use"):
        async with serve_health(Health(), OperatorMetrics(), runbooks=PAGE, host=LOOPBACK, port=taken.getsockname()[1]):
            pass
