"""Turns of a namespace's AutoscalingPolicies against an API server on a real socket."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp import web
from kubernetes.client import Configuration
from support_gateway import serving
from support_operator import NOW, a_service

from sapwood_operator.adapters.access import Access
from sapwood_operator.adapters.cluster import Cluster
from sapwood_operator.handlers.policies import PolicyStatuses
from sapwood_operator.handlers.store import PoliciesKey, Store
from sapwood_operator.handlers.workers import Converged, NothingThere, Turn

TEAM = PoliciesKey("team")


def a_policy(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.sapwood.dev/v1alpha1",
        "kind": "AutoscalingPolicy",
        "metadata": {"namespace": "team", "name": name, "uid": name, "generation": 1, "resourceVersion": "1"},
        "spec": {"maxReplicas": 4, **spec},
    }


def following(policy: str, version: int) -> dict[str, Any]:
    service = a_service(autoscaling={"policyRef": {"name": policy}})
    service["metadata"]["resourceVersion"] = str(version)
    return service


async def turns(store: Store, count: int = 1) -> tuple[list[Turn], list[tuple[str, int, str]]]:
    """Return how turns ended, and of each status that was written the policy, its services and Ready's reason."""
    written: list[tuple[str, int, str]] = []

    async def handle(request: web.Request) -> web.Response:
        *_, plural, name, _status = request.path.split("/")
        assert (request.method, plural) == ("PATCH", "autoscalingpolicies")
        body = json.loads(await request.read())
        written.append((name, body["status"]["services"], body["status"]["conditions"][0]["reason"]))
        known = store.policies("team")[name]
        about = {**known["metadata"], "resourceVersion": str(100 + len(written))}
        return web.json_response({**known, **body, "metadata": about})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with serving(app) as url:
        configuration = Configuration()
        configuration.host = url
        with ThreadPoolExecutor(1) as threads, Access(configuration).client(connections=1) as client:
            cluster = Cluster(client, request_timeout_seconds=10.0, on_write=lambda _kind, _verb: None)
            statuses = PolicyStatuses(store, cluster, threads=threads, now=lambda: NOW)
            return [await statuses.reconcile(TEAM) for _ in range(count)], written


async def test_a_policy_counts_its_services_and_says_whether_it_can_be_followed_once() -> None:
    store = Store()
    for live in (a_policy("day"), a_policy("wrong", minReplicas=9), following("day", 5)):
        store.put(live)
    ended, written = await turns(store, 2)
    assert ended == [Converged(), Converged()]
    assert written == [("day", 1, "Ready"), ("wrong", 0, "InvalidSpec")]
    store.put(following("wrong", 200))
    assert await turns(store) == ([Converged()], [("day", 0, "Ready"), ("wrong", 1, "InvalidSpec")])


async def test_a_namespace_without_policies_has_no_more_turns() -> None:
    assert await turns(Store()) == ([NothingThere()], [])
