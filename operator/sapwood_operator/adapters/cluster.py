"""The Kubernetes API as the operator uses it: blocking calls for worker threads, each bounded in time and never retried
here (the work queue retries a whole reconcile, which finds out what is left to do).

Writes of objects are server-side applies under one field manager, forced: the fields that the operator renders are the
operator's, and whatever else stands in an object is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kubernetes.client import ApiClient, ApiException
from urllib3.exceptions import HTTPError

from sapwood_operator.adapters.kinds import BY_NAME, EVENTS, SECRETS, Kind
from sapwood_operator.adapters.outcomes import (
    NAMESPACE_LEAVING,
    Absent,
    Done,
    Outcome,
    Refused,
    Retry,
    judge,
    unreachable,
)
from sapwood_operator.domain.names import FIELD_MANAGER

CONNECT_SECONDS = 3.0
PAGE_OBJECTS = 500
"""Objects that one answer to a list holds."""

Verb = Literal["apply", "delete", "create"]
JsonObject = Mapping[str, Any]
_APPLY = "application/apply-patch+yaml"
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Listed:
    """All objects of a kind as they were at ``version``."""

    objects: tuple[JsonObject, ...]
    version: str


class Cluster:
    """Calls to one API server. Safe to use from several threads."""

    def __init__(
        self, client: ApiClient, *, request_timeout_seconds: float, on_write: Callable[[str, Verb], None]
    ) -> None:
        """``on_write`` is told kind and verb of each write, before it is sent and in the calling thread."""
        self._client = client
        self._timeout = (CONNECT_SECONDS, request_timeout_seconds)
        self._on_write = on_write

    # --- reading

    def read(self, kind: Kind, namespace: str, name: str) -> Outcome:
        """Return the object as it is now."""
        return self._call("GET", kind.path(namespace, name))

    def list(
        self, kind: Kind, namespace: str, *, label_selector: str = "", field_selector: str = ""
    ) -> Listed | Refused | Retry:
        """Return all objects of a kind in ``namespace`` (empty: in every one), as one consistent view."""
        objects: list[JsonObject] = []
        query = {"limit": str(PAGE_OBJECTS), "labelSelector": label_selector, "fieldSelector": field_selector}
        while True:
            answer = self._call("GET", kind.collection(namespace), query={k: v for k, v in query.items() if v})
            match answer:
                case Absent():
                    return Refused(404, "NotFound", f"{kind.kind} cannot be listed")
                case Refused() | Retry():
                    return answer
            # The items of a list leave out what they are.
            objects += [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in answer.body["items"]]
            about = answer.body["metadata"]
            query["continue"] = about.get("continue", "")
            if not query["continue"]:
                return Listed(tuple(objects), about["resourceVersion"])

    def present(self, kinds: Iterable[Kind]) -> frozenset[Kind] | Refused | Retry:
        """Return those of ``kinds`` that can be made: one whose CRD is being deleted is served, and takes no write."""
        wanted = frozenset(kinds)
        found: set[Kind] = set()
        for group_path in sorted({kind.group_path for kind in wanted}):
            answer = self._call("GET", group_path)
            match answer:
                case Done(body):
                    usable = {one["name"] for one in body.get("resources", ()) if "patch" in one["verbs"]}
                    found |= {kind for kind in wanted if kind.group_path == group_path and kind.plural in usable}
                case Refused(status=404) | Absent():
                    continue
                case _:
                    return answer
        return frozenset(found)

    # --- writing

    def apply(self, desired: JsonObject) -> Outcome:
        """Make the fields of ``desired`` so, creating the object where it is missing; `Done` holds it as it is now."""
        kind = BY_NAME[desired["apiVersion"], desired["kind"]]
        about = desired["metadata"]
        self._on_write(kind.kind, "apply")
        return self._apply(kind.path(about["namespace"], about["name"]), desired)

    def create_secret(self, desired: JsonObject) -> Outcome:
        """Make a Secret; where one of the name exists it is the same, for the name tells what is inside."""
        self._on_write(SECRETS.kind, "create")
        answer = self._call("POST", SECRETS.collection(desired["metadata"]["namespace"]), body=desired)
        return Done({}) if isinstance(answer, Retry) and answer.reason == "AlreadyExists" else answer

    def apply_status(self, live: JsonObject, status: JsonObject) -> Outcome:
        """Make ``status`` the status of that very object (its uid), and no later one of the same name."""
        kind, about = BY_NAME[live["apiVersion"], live["kind"]], live["metadata"]
        self._on_write(kind.kind, "apply")
        return self._apply(
            f"{kind.path(about['namespace'], about['name'])}/status",
            {
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                "metadata": {key: about[key] for key in ("namespace", "name", "uid")},
                "status": status,
            },
        )

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> Outcome:
        """Delete the object with that uid; `Absent` where it is gone, or where the name is another object's by now."""
        self._on_write(kind.kind, "delete")
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        answer = self._call("DELETE", kind.path(namespace, name), body=options)
        return Absent() if isinstance(answer, Retry) and answer.reason == "Conflict" else answer

    def create_event(self, event: JsonObject) -> Outcome:
        """Tell an event; one of the same name has told it already, and that is as good. So is a namespace that is being
        deleted and takes none: the status, which it does take, is not to wait for that.
        """
        self._on_write(EVENTS.kind, "create")
        answer = self._call("POST", EVENTS.collection(event["metadata"]["namespace"]), body=event)
        is_enough = isinstance(answer, Retry) and answer.reason in ("AlreadyExists", NAMESPACE_LEAVING)
        return Done({}) if is_enough else answer

    # --- the wire

    def _apply(self, path: str, body: JsonObject) -> Outcome:
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return self._call("PATCH", path, query=query, body=body, content_type=_APPLY)

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        content_type: str = _JSON,
    ) -> Outcome:
        return call(
            self._client,
            method,
            path,
            query=query or {},
            body=body,
            content_type=content_type,
            timeout=self._timeout,
        )


def call(
    client: ApiClient,
    method: str,
    path: str,
    *,
    query: Mapping[str, str],
    body: JsonObject | None,
    timeout: tuple[float, float],
    content_type: str = _JSON,
) -> Outcome:
    """Send one request and judge the answer; ``timeout``: seconds to connect, and for each read."""
    try:
        verb, url, headers, data, _ = client.param_serialize(
            method=method,
            resource_path=path,
            query_params=list(query.items()),
            header_params={"Accept": _JSON, "Content-Type": content_type},
            # The library writes JSON itself, but no other type.
            body=body if content_type == _JSON or body is None else json.dumps(body),
            auth_settings=["BearerToken"],
        )
        response = client.rest_client.request(  # type: ignore[no-untyped-call]  # as the library is
            verb, url, headers=headers, body=data, _request_timeout=timeout
        )
        return judge(response.status, response.read(), response.headers.get("Retry-After"))
    except (HTTPError, ApiException) as error:  # the latter: TLS
        return unreachable(error)
