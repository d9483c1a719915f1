"""A small API server that lists and watches config maps, endpoint slices and tenants, and has Secrets, over a real
socket.

It knows as much of the real one's manners as discovery relies on: versions that rise with every change, label
selectors, watches that begin after a version, bookmarks, and 410 for versions that it has forgotten. The real one is
asked the same in `e2e/test_gateway.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from support_gateway import serving

from sapwood_gateway.shell.discovery.cluster import ClusterDiscovery

Json = dict[str, Any]
DEEP = "DEEP"
"""A value that is sent as JSON of so many levels as the real server still takes."""
_DEEP_JSON = '{"f:a":' * 9_000 + "{}" + "}" * 9_000
_PATHS = (
    "/api/v1/{prefix:(namespaces/[^/]+/)?}{kind:configmaps}",
    "/apis/discovery.k8s.io/v1/{prefix:(namespaces/[^/]+/)?}{kind:endpointslices}",
    "/apis/serving.sapwood.dev/v1alpha1/{prefix:(namespaces/[^/]+/)?}{kind:tenants}",
)


@dataclass
class FakeClusterApi:
    """Objects by kind; `put` and `delete` are seen by every watch."""

    url: str = ""
    version: int = 100
    objects: dict[tuple[str, str, str], Json] = field(default_factory=dict)
    log: list[tuple[int, str, Json]] = field(default_factory=list)
    """Version, kind and event of every change that is not forgotten."""
    missing_kinds: set[str] = field(default_factory=lambda: {"tenants"})
    """Whose definitions are not installed."""
    forbidden_kinds: set[str] = field(default_factory=set)
    forbade: asyncio.Event = field(default_factory=asyncio.Event)
    oldest: int = 100
    requests: list[str] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)
    """Statuses that the next requests get."""
    secret_refusals: dict[str, int] = field(default_factory=dict)
    """Status of every question for the Secret of a name; 0: the connection breaks."""
    num_watching: int = 0
    watching: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    broken: int = 0
    """Rises when all watches are to break."""

    async def put(self, kind: str, item: Json) -> None:
        """Create or replace an object."""
        key = self._key(kind, item)
        await self._record(kind, "MODIFIED" if key in self.objects else "ADDED", item)
        self.objects[key] = item

    async def delete(self, kind: str, item: Json) -> None:
        """Remove an object."""
        del self.objects[self._key(kind, item)]
        await self._record(kind, "DELETED", item)

    async def break_watches(self, *, forget: bool = False) -> None:
        """End every watch's connection; with ``forget`` no version up to now can be watched from."""
        async with self.changed:
            self.watching.clear()
            self.broken += 1
            if forget:
                self.log.clear()
                self.version += 1
                self.oldest = self.version
            self.changed.notify_all()

    async def _record(self, kind: str, type_: str, item: Json) -> None:
        async with self.changed:
            self.version += 1
            item["metadata"]["resourceVersion"] = str(self.version)
            self.log.append((self.version, kind, {"type": type_, "object": json.loads(json.dumps(item))}))
            self.changed.notify_all()

    @staticmethod
    def _key(kind: str, item: Json) -> tuple[str, str, str]:
        return kind, item["metadata"]["namespace"], item["metadata"]["name"]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.path)
        if self.refusals:
            return web.json_response({"kind": "Status", "reason": "Refused"}, status=self.refusals.pop(0))
        kind, prefix = request.match_info["kind"], request.match_info["prefix"]
        if kind in self.forbidden_kinds:
            self.forbade.set()
            return web.json_response({"kind": "Status", "reason": "Forbidden"}, status=403)
        if kind in self.missing_kinds:
            return web.Response(text="404 page not found\n", status=404)
        name, _, value = request.query["labelSelector"].partition("=")

        def wanted(item: Json) -> bool:
            metadata = item["metadata"]
            is_labelled = not name or metadata.get("labels", {}).get(name) == value
            return is_labelled and (not prefix or prefix == f"namespaces/{metadata['namespace']}/")

        if request.query.get("watch") == "true":
            return await self._watch(request, kind, wanted)
        items = [item for (of, _, _), item in self.objects.items() if of == kind and wanted(item)]
        listing = {"metadata": {"resourceVersion": str(self.version)}, "items": items}
        return web.Response(body=_encode(listing), content_type="application/json")

    async def handle_secret(self, request: web.Request) -> web.Response:
        self.requests.append(request.path)
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        found = self.objects.get(("secrets", namespace, name))
        status = self.secret_refusals.get(name, 404 if found is None else 200)
        if status == 0:
            assert request.transport is not None
            request.transport.close()
        if status != 200:
            return web.json_response({"kind": "Status", "message": f"secrets {name!r}"}, status=status or 500)
        return web.Response(body=_encode(found or {}), content_type="application/json")

    async def _watch(self, request: web.Request, kind: str, wanted: Any) -> web.StreamResponse:
        seen = int(request.query["resourceVersion"])
        if seen < self.oldest:
            return web.json_response({"kind": "Status", "code": 410, "reason": "Expired"}, status=410)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        broken = self.broken
        self.num_watching += 1
        self.watching.set()
        try:
            while True:
                for version, of, event in self.log:
                    if version > seen and of == kind and wanted(event["object"]):
                        await response.write(_encode(event) + b"\n")
                seen = max(seen, self.version)
                async with self.changed:
                    while self.version == seen and self.broken == broken:
                        await self.changed.wait()
                if self.broken > broken:
                    assert request.transport is not None
                    request.transport.close()
                    return response
        finally:
            self.num_watching -= 1


def _encode(value: Json) -> bytes:
    return json.dumps(value).replace(json.dumps(DEEP), _DEEP_JSON).encode()


@asynccontextmanager
async def cluster_api() -> AsyncIterator[FakeClusterApi]:
    """Run one."""
    fake = FakeClusterApi()
    app = web.Application()
    for path in _PATHS:
        app.router.add_get(path, fake.handle)
    app.router.add_get("/api/v1/namespaces/{namespace}/secrets/{name}", fake.handle_secret)
    async with serving(app) as url:
        fake.url = url
        yield fake


@asynccontextmanager
async def started(discovery: ClusterDiscovery) -> AsyncIterator[None]:
    """Let ``discovery`` follow its cluster for so long."""
    discovery.start()
    try:
        yield
    finally:
        discovery.stop()
        await asyncio.to_thread(discovery.join)
