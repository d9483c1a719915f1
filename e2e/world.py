"""The state of the world, asked and changed as a person with kubectl would: objects by their paths."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kubernetes.client import ApiClient

T = TypeVar("T")
JsonObject = dict[str, Any]

POLL_SECONDS = 0.1
_PERSON = "somebody"
"""Field manager of what tests write."""
_SERVICES = "/apis/serving.sapwood.dev/v1alpha1/namespaces/{}/inferenceservices"
CHILD_COLLECTIONS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
}
OWNED = "labelSelector=serving.sapwood.dev%2Fservice"


class Refused(Exception):
    """The API server would not do it."""

    def __init__(self, status: int, answer: JsonObject) -> None:
        super().__init__(f"{status} {answer.get('message', answer)}")
        self.status = status


class World:
    """One cluster."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def call(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> JsonObject:
        """Return the decoded answer; raises `Refused` for any status but 2xx."""
        status, text = self._send(method, path, body, content_type)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"message": text.decode(errors="replace")}
        if not 200 <= status < 300:
            raise Refused(status, answer)
        assert isinstance(answer, dict)
        return answer

    def history(self, path: str, version: str) -> list[JsonObject]:
        """Return an object as it was after each write since ``version``, a resourceVersion of minutes ago at most."""
        collection, _, name = path.rpartition("/")
        query = f"watch=true&timeoutSeconds=1&resourceVersion={version}&fieldSelector=metadata.name%3D{name}"
        status, text = self._send("GET", f"{collection}?{query}")
        assert status == 200, text
        events = [json.loads(line) for line in text.splitlines()]
        assert not [event for event in events if event["type"] == "ERROR"], events
        return [event["object"] for event in events]

    def _send(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> tuple[int, bytes]:
        verb, url, headers, data, _ = self._client.param_serialize(
            method=method,
            resource_path=path,
            header_params={"Accept": "application/json", "Content-Type": content_type},
            # The library writes JSON itself, but no other type.
            body=body if content_type.endswith("json") or body is None else json.dumps(body),
            auth_settings=["BearerToken"],
        )
        response = self._client.rest_client.request(  # type: ignore[no-untyped-call]  # as the library is
            verb, url, headers=headers, body=data, _request_timeout=(5, 30)
        )
        return response.status, response.read()

    def get(self, path: str) -> JsonObject | None:
        """Return the object, or None where there is none."""
        try:
            return self.call("GET", path)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def items(self, path: str) -> list[JsonObject]:
        """Return the objects of a collection."""
        return list(self.call("GET", path)["items"])

    def collections(self, namespace: str) -> list[tuple[str, str]]:
        """Return (kind, path) of every collection of a namespace that can be listed."""
        groups = [group["preferredVersion"]["groupVersion"] for group in self.call("GET", "/apis")["groups"]]
        return [
            (resource["kind"], f"{root}/namespaces/{namespace}/{resource['name']}")
            for root in ("/api/v1", *(f"/apis/{group}" for group in groups))
            for resource in self.call("GET", root)["resources"]
            if resource["namespaced"] and "list" in resource["verbs"]
        ]

    def apply(self, collection: str, manifest: Mapping[str, Any]) -> JsonObject:
        """Create or change an object."""
        path = f"{collection}/{manifest['metadata']['name']}?fieldManager={_PERSON}&force=true"
        return self.call("PATCH", path, manifest, "application/apply-patch+yaml")

    def edit(self, path: str, change: Mapping[str, Any]) -> JsonObject:
        """Change fields of an object by hand, as ``kubectl edit`` does."""
        return self.call("PATCH", f"{path}?fieldManager={_PERSON}", change, "application/merge-patch+json")

    def delete(self, path: str) -> None:
        """Delete an object; one that is not there is as good."""
        try:
            self.call("DELETE", path)
        except Refused as refused:
            if refused.status != 404:
                raise

    # --- what tests of services ask

    def make_namespace(self, name: str) -> str:
        """Create a namespace and return its name."""
        self.apply("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return name

    def make_service(self, namespace: str, name: str = "chat", **spec: Any) -> JsonObject:
        """Apply an InferenceService of the builtin model."""
        manifest = {
            "apiVersion": "serving.sapwood.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"model": {"source": {"builtin": "smollm2-135m"}}, "engine": {"device": "CPU"}, **spec},
        }
        return self.apply(_SERVICES.format(namespace), manifest)

    def service(self, namespace: str, name: str = "chat") -> JsonObject | None:
        """Return an InferenceService."""
        return self.get(service_path(namespace, name))

    def children(self, namespace: str) -> dict[tuple[str, str], JsonObject]:
        """Return what the operator made in a namespace: (kind, name) -> object."""
        return {
            (kind, item["metadata"]["name"]): {"kind": kind, **item}  # items of a list do not say what they are
            for kind, collection in CHILD_COLLECTIONS.items()
            for item in self.items(f"{collection.format(namespace)}?{OWNED}")
        }

    def events(self, namespace: str) -> list[JsonObject]:
        """Return the Events that the operator told in a namespace, in their order."""
        events = self.items(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
        own = [event for event in events if event.get("reportingController") == "serving.sapwood.dev/operator"]
        return sorted(own, key=lambda event: (event["eventTime"], event["metadata"]["name"]))


def service_path(namespace: str, name: str = "chat") -> str:
    """Return the path of an InferenceService."""
    return f"{_SERVICES.format(namespace)}/{name}"


def child_path(namespace: str, kind: str, name: str) -> str:
    """Return the path of a child."""
    return f"{CHILD_COLLECTIONS[kind].format(namespace)}/{name}"


def condition(service: Mapping[str, Any] | None, type_: str) -> JsonObject:
    """Return a condition of a service; empty where it has none yet."""
    conditions = ((service or {}).get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == type_), {})


def eventually(probe: Callable[[], T | None], what: str, *, within_seconds: float = 30.0) -> T:
    """Return the first true answer of ``probe``; fails with its last one when time is up.

    A limit, not a measurement: what is awaited happens at once on a machine with nothing else to do.
    """
    end = time.monotonic() + within_seconds
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < end, f"{what}: not within {within_seconds:g} s; last seen: {found!r}"
        time.sleep(POLL_SECONDS)
