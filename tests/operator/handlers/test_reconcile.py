"""Turns of one service against an API server on a real socket."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from kubernetes.client import Configuration
from support_gateway import serving
from support_operator import NOW, SETTINGS, WITH_SECRET, a_service
from support_small_cluster import SmallCluster
from support_small_operator import a_scaler

from sapwood_operator.adapters.access import Access
from sapwood_operator.adapters.cluster import Cluster
from sapwood_operator.domain.names import APPLIED_ANNOTATION
from sapwood_operator.handlers.reconcile import STUBBORN_TURNS, Reconciler
from sapwood_operator.handlers.store import ServiceKey, Store
from sapwood_operator.handlers.workers import Converged, TryAgain, Turn
from sapwood_operator.settings import OperatorSettings

CHAT = ServiceKey("team", "chat")


@dataclass
class FakeServer:
    """Has no children at first and takes every write, but for Deployments while ``failing`` says how they fail: with
    an answer, or with none where it is empty.
    """

    failing: dict[str, Any] | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    """Of the service."""
    is_leaving: bool = False
    """The namespace is being deleted."""
    applied: list[str] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)
    made: list[str] = field(default_factory=list)
    """Secrets that were asked for, there already or not. None can be read."""
    events: list[dict[str, Any]] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    versions: itertools.count[int] = field(default_factory=lambda: itertools.count(100))

    async def handle(self, request: web.Request) -> web.Response:
        *_, plural, name = request.path.split("/")
        if request.method == "GET":
            assert plural != "secrets"
            missing = {"kind": "Status", "reason": "NotFound", "details": {"name": name, "kind": plural}}
            return web.json_response(missing, status=404)
        if self.is_leaving and name != "status":
            details = {"causes": [{"reason": "NamespaceTerminating"}]}
            return web.json_response({"kind": "Status", "reason": "Forbidden", "details": details}, status=403)
        body = json.loads(await request.read())
        if request.method == "POST" and name == "secrets":
            return self._make_secret(body)
        if request.method == "POST":
            self.events.append(body)
            return web.json_response(body)
        if plural == "deployments" and self.failing is not None:
            if not self.failing:
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            return web.json_response({"kind": "Status", **self.failing}, status=self.failing["code"])
        about = {"resourceVersion": str(next(self.versions)), "generation": 1}
        body["metadata"] = {"uid": request.path, **body["metadata"], **about}
        if name == "status":
            self.status = body["status"]
            body = {**a_service(**self.spec), **body}
        else:
            self.applied.append(body["kind"])
        return web.json_response(body)

    def _make_secret(self, body: dict[str, Any]) -> web.Response:
        name = body["metadata"]["name"]
        self.made.append(name)
        if name in self.secrets:
            return web.json_response({"kind": "Status", "reason": "AlreadyExists"}, status=409)
        self.secrets.add(name)
        return web.json_response(body)

    def condition(self, type_: str) -> tuple[str, str, str]:
        found = next(c for c in self.status["conditions"] if c["type"] == type_)
        return found["status"], found["reason"], found["message"]


@asynccontextmanager
async def reconciling(
    server: FakeServer, store: Store | None = None, *, settings: OperatorSettings = SETTINGS
) -> AsyncIterator[Reconciler]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    store = store or Store()
    service = a_service(**server.spec)
    service["metadata"]["resourceVersion"] = "1"
    store.put(service)
    async with serving(app) as url:
        configuration = Configuration()
        configuration.host = url
        with ThreadPoolExecutor(1) as threads, Access(configuration).client(connections=1) as client:
            cluster = Cluster(client, request_timeout_seconds=10.0, on_write=lambda _kind, _verb: None)
            yield Reconciler(
                store,
                cluster,
                scaler=a_scaler(store, SmallCluster()),
                settings=settings,
                identity="test",
                threads=threads,
                now=lambda: NOW,
            )


async def turns(reconciler: Reconciler, count: int) -> list[Turn]:
    return [await reconciler.reconcile(CHAT) for _ in range(count)]


def fails(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"code": code, "reason": reason, "message": message}


async def test_a_failure_that_comes_a_few_times_is_tried_again_and_told_to_nobody() -> None:
    server = FakeServer(fails(500, "InternalError", "oops"))
    async with reconciling(server) as reconciler:
        ended = await turns(reconciler, STUBBORN_TURNS - 1)
        server.failing = None
        last = await reconciler.reconcile(CHAT)
    assert ended == [TryAgain("InternalError", "oops")] * (STUBBORN_TURNS - 1)
    assert isinstance(last, Converged)
    assert server.condition("Degraded")[0] == "False"
    assert "Warning" not in {event["type"] for event in server.events}


async def test_a_write_that_fails_turn_after_turn_becomes_a_condition_and_an_event_and_stops_no_other_write() -> None:
    server = FakeServer(fails(500, "InternalError", "oops"))
    async with reconciling(server) as reconciler:
        ended = await turns(reconciler, STUBBORN_TURNS)
        assert "ConfigMap" in server.applied
        assert ended[-1] == TryAgain("InternalError", "oops")
        cause = "the API server refuses Deployment team/chat-engine (InternalError): oops"
        assert server.condition("Ready") == ("False", "ApplyRefused", cause)
        assert server.condition("Degraded") == ("True", "ApplyRefused", cause)
        assert [e["note"] for e in server.events if e["type"] == "Warning"] == [cause]
        server.failing = None
        await turns(reconciler, 1)
        assert server.condition("Degraded")[0] == "False"


async def test_a_server_that_gives_no_answer_is_not_asked_for_more() -> None:
    server = FakeServer({})
    async with reconciling(server) as reconciler:
        await turns(reconciler, 2 * STUBBORN_TURNS)
    assert "ConfigMap" not in server.applied
    assert server.condition("Degraded")[0] == "False"


async def test_failures_for_changing_reasons_are_not_the_same_failure() -> None:
    server = FakeServer()
    async with reconciling(server) as reconciler:
        for number in range(3 * STUBBORN_TURNS):
            server.failing = fails(503, f"Reason{number % 2}", "oops")
            await turns(reconciler, 1)
        assert server.condition("Degraded")[0] == "False"


async def test_in_a_namespace_that_is_being_deleted_the_status_is_written_although_no_event_is_taken() -> None:
    server = FakeServer(is_leaving=True)
    async with reconciling(server) as reconciler:
        assert isinstance(await reconciler.reconcile(CHAT), TryAgain)
    assert server.condition("Serving")[0] == "False"


@pytest.mark.parametrize(("applied", "warned"), [("of another", True), (None, False)], ids=["operator", "user"])
async def test_an_object_that_another_operator_wrote_since_is_logged(
    applied: str | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server, store = FakeServer(), Store()
    async with reconciling(server, store) as reconciler:
        await turns(reconciler, 1)
        (budget,) = [ref for ref in store.children(CHAT) if ref.kind == "PodDisruptionBudget"]
        live = copy.deepcopy(dict(store.children(CHAT)[budget]))
        live["metadata"] |= {"resourceVersion": "1000", "annotations": applied and {APPLIED_ANNOTATION: applied}}
        store.put(live)
        await turns(reconciler, 1)
    assert server.applied.count("PodDisruptionBudget") == 2
    assert ("another operator writes this object too" in caplog.messages) == warned


@pytest.mark.parametrize("sentence", ["failed to convert new object", "failed to create typed patch object"])
async def test_a_value_that_no_deployment_can_have_is_told_at_once_in_bounded_length(sentence: str) -> None:
    server = FakeServer(fails(500, "", f"{sentence} (…): " + "x" * 5000))
    async with reconciling(server) as reconciler:
        assert isinstance(await reconciler.reconcile(CHAT), Converged)
    status, reason, message = server.condition("Degraded")
    assert (status, reason) == ("True", "ApplyRefused")
    assert sentence in message
    assert len(message) < 1200


async def test_a_secret_is_made_without_being_read_once_and_again_when_it_may_be_gone() -> None:
    server = FakeServer(spec={"tenancy": {"authentication": "ApiKey"}})
    async with reconciling(server, settings=WITH_SECRET) as reconciler:
        await turns(reconciler, 3)
        assert len(server.made) == 1
        assert "Deployment" in server.applied
        server.secrets.clear()
        reconciler.forget_secrets()
        await turns(reconciler, 2)
    assert len(server.made) == 2
    assert server.secrets == set(server.made)


async def test_a_secret_that_is_there_already_is_as_good() -> None:
    server = FakeServer(spec={"tenancy": {"authentication": "ApiKey"}})
    for _ in range(2):
        async with reconciling(server, settings=WITH_SECRET) as reconciler:
            assert isinstance(await reconciler.reconcile(CHAT), Converged)
    assert len(server.made) == 2
    assert len(server.secrets) == 1
