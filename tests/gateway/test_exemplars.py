"""A real Prometheus takes what engine and gateway expose, and leads from a slow request's bucket to its trace."""

from __future__ import annotations

from pathlib import Path

from support_api import TEXT, served
from support_gateway import admin_app, gateway, routes, serving
from support_prometheus import prometheus
from support_service import thread_engine
from support_spans import TRACE_ID, TRACEPARENT, Kept

from sapwood_engine.api.app import build_app
from sapwood_engine.service.call_trace import CallTraces
from sapwood_gateway.core.routes import Replica
from sapwood_gateway.shell.route_spans import SpannedRoutes

TRACED = (
    ("engine", "sapwood_time_to_first_token_seconds_bucket"),
    ("engine", "sapwood_inter_token_latency_seconds_bucket"),
    ("engine", "sapwood_request_duration_seconds_bucket"),
    ("gateway", "sapwood_gateway_overhead_seconds_bucket"),
)


async def test_prometheus_keeps_the_clients_trace_beside_the_series_of_its_request(tmp_path: Path) -> None:
    tracing = Kept().tracing
    async with (
        thread_engine() as engine,
        served(build_app(engine.client, traces=CallTraces(tracing, model="fake"))) as engine_url,
        gateway(
            routes(Replica(id="a", name="a", url=engine_url, admin_url=engine_url), models=("fake",)),
            traces=SpannedRoutes(tracing),
        ) as running,
        serving(admin_app(running)) as admin_url,
        prometheus(tmp_path, {"engine": engine_url, "gateway": admin_url}) as store,
    ):
        body = {"model": "fake", "prompt": "once upon a time", "max_tokens": 8, "ignore_eos": True}
        async with running.client.post(TEXT, json=body, headers={"traceparent": TRACEPARENT}) as answer:
            assert answer.status == 200
        for job, series in TRACED:
            found = await store.until_found("query_exemplars", query=series, start="0", end="9999999999")
            assert {bucket["seriesLabels"]["job"] for bucket in found} == {job}
            ids = {exemplar["labels"]["trace_id"] for bucket in found for exemplar in bucket["exemplars"]}
            assert ids == {TRACE_ID}
        for query in ('up{job="engine"}', 'up{job="gateway"}', 'sapwood_http_requests_total{code="200"}'):
            [sample] = await store.until_found("query", query=query)
            assert sample["value"][1] == "1"
