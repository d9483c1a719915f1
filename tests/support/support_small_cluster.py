"""A small cluster over a real socket: an API server, and the controllers that make and take the pods of a Deployment.

It knows as much of the real one's manners as turns of a service rely on: objects are applied and keep their uid, a
ReplicaSet that shrinks takes pods that are not ready first and then those that cost least, an event of one name is
taken once. Its n-th write may fail, or be the last that the operator lives to see.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from aiohttp import web
from support_operator import HASH, NOW, REVISION, STARTED

from sapwood_contract.routing import SERVICE_LABEL
from sapwood_operator.autoscaling.values import NoReading, Reading
from sapwood_operator.domain import names
from sapwood_operator.domain.pod_marks import COST_ANNOTATION

Json = dict[str, Any]
_SERVICE = "/apis/serving.sapwood.dev/v1alpha1/namespaces/team/inferenceservices/chat"
_DEPLOYMENT = "/apis/apps/v1/namespaces/team/deployments/chat-engine"
_ROUTE = "/api/v1/namespaces/team/configmaps/chat-routing"
_PODS = "/api/v1/namespaces/team/pods"
_NOT_ASKED = NoReading("nobody has asked it yet")


@dataclass
class SmallCluster:
    """All objects by path; what engines and gateways have to do."""

    objects: dict[str, Json] = field(default_factory=dict)
    version: int = 100
    num_pods: int = 0
    writes: list[str] = field(default_factory=list)
    """Kinds of what was written, in order, events and statuses too."""
    failing_write: int = 0
    """The number of the write that gets no more than 500; 0: none does."""
    last_write: int = 0
    """The number of the write after which the operator is dead; 0: it lives."""
    events: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> reason and note."""
    now: datetime = NOW
    reading: Reading | NoReading = _NOT_ASKED
    """What each replica did lately."""
    waiting: int = 0
    """Requests that gateways hold."""
    requests: dict[str, int] = field(default_factory=dict)
    """Pod -> requests there."""
    worth: dict[str, float] = field(default_factory=dict)
    """Pod -> tokens of worth that it alone holds."""

    # --- the API server

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            found = self.objects.get(request.path)
            return web.json_response(found) if found is not None else _absent(request.path)
        kind = request.path.split("/")[-1] if request.method == "POST" else request.path.split("/")[-2]
        if self.last_write and len(self.writes) >= self.last_write:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        self.writes.append(kind)
        if len(self.writes) == self.failing_write:
            return web.json_response({"kind": "Status", "reason": "InternalError", "message": "oops"}, status=500)
        body = json.loads(await request.read())
        if request.method == "POST":
            name = body["metadata"]["name"]
            if name in self.events:
                return web.json_response({"kind": "Status", "reason": "AlreadyExists"}, status=409)
            self.events[name] = (body["reason"], body["note"])
            return web.json_response(body)
        return self._apply(request.path, body)

    def _apply(self, path: str, body: Json) -> web.Response:
        if path.endswith("/status"):
            path = path.removesuffix("/status")
            return web.json_response(self.put(path, {**self.objects[path], "status": body["status"]}))
        former = self.objects.get(path)
        if path.startswith(_PODS):
            if former is None or former["metadata"]["uid"] != body["metadata"]["uid"]:
                return web.json_response({"kind": "Status", "reason": "Conflict"}, status=409)
            pod = copy.deepcopy(former)
            pod["metadata"]["annotations"] = body["metadata"]["annotations"]
            return web.json_response(self.put(path, pod))
        if former is not None and "status" in former:
            body["status"] = former["status"]
        return web.json_response(self.put(path, body))

    def put(self, path: str, live: Json) -> Json:
        """Keep an object as of now."""
        former = self.objects.get(path)
        self.version += 1
        fresh = {"uid": f"uid-{self.version}", **live["metadata"], "generation": 0}
        about: Json = fresh if former is None else former["metadata"]
        is_other = former is None or former.get("spec") != live.get("spec")
        live["metadata"] = {
            **live["metadata"],
            "uid": about["uid"],
            "generation": about.get("generation", 0) + is_other,
            "resourceVersion": str(self.version),
        }
        self.objects[path] = live
        return live

    def serve(self, **spec: Any) -> None:
        """Have the user write the service."""
        model = {"source": {"builtin": "smollm2-135m"}}
        kind = {"apiVersion": names.API_VERSION, "kind": names.KIND}
        former = self.objects.get(_SERVICE, {})
        about = {"metadata": {"namespace": "team", "name": "chat"}, "spec": {"model": model, **spec}}
        self.put(_SERVICE, {**former, **kind, **about})

    def follow(self, **spec: Any) -> None:
        """Have the user write the AutoscalingPolicy `day`."""
        path = "/apis/serving.sapwood.dev/v1alpha1/namespaces/team/autoscalingpolicies/day"
        about: Json = {"apiVersion": names.API_VERSION, "kind": "AutoscalingPolicy"}
        self.put(path, {**about, "metadata": {"namespace": "team", "name": "day"}, "spec": spec})

    # --- controllers and kubelets

    def settle(self) -> None:
        """Let the controllers do what is due, and the pods get on by a step."""
        deployment = self.objects.get(_DEPLOYMENT)
        if deployment is None:
            return
        for path, pod in self.pods.items():
            if not is_ready(pod) and SERVICE_LABEL in pod["metadata"]["labels"]:
                self._get_on(path, pod)
        wanted = deployment["spec"]["replicas"]
        while len(self.pods) > wanted:
            path = min(self.pods, key=lambda each: _order(self.pods[each]))
            del self.objects[path]
        while len(self.pods) < wanted:
            self._make_pod()
        num_ready = sum(map(is_ready, self.pods.values()))
        status = dict.fromkeys(("readyReplicas", "availableReplicas"), num_ready)
        status |= dict.fromkeys(("replicas", "updatedReplicas"), len(self.pods))
        status["observedGeneration"] = deployment["metadata"]["generation"]
        if deployment.get("status") != status:
            deployment = copy.deepcopy(deployment)
            deployment["metadata"]["annotations"][REVISION] = "1"
            self.put(_DEPLOYMENT, {**deployment, "status": status})
        self._put_replica_set(deployment, num_ready)

    def _put_replica_set(self, deployment: Json, num_ready: int) -> None:
        path = "/apis/apps/v1/namespaces/team/replicasets/chat-engine-1"
        if self.objects.get(path, {}).get("status") == {"readyReplicas": num_ready}:
            return
        metadata = {
            "namespace": "team",
            "name": "chat-engine-1",
            "uid": _REPLICA_SET_UID,
            "labels": {"pod-template-hash": HASH, SERVICE_LABEL: "chat"},
            "annotations": {REVISION: "1"},
            "ownerReferences": [{"uid": deployment["metadata"]["uid"], "controller": True}],
        }
        kind = {"apiVersion": "apps/v1", "kind": "ReplicaSet"}
        self.put(path, {**kind, "metadata": metadata, "status": {"readyReplicas": num_ready}})

    def _make_pod(self) -> None:
        self.num_pods += 1
        name = f"chat-engine-{self.num_pods}"
        metadata = {
            "namespace": "team",
            "name": name,
            "labels": {"pod-template-hash": HASH, SERVICE_LABEL: "chat"},
            "creationTimestamp": self.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "ownerReferences": [{"uid": _REPLICA_SET_UID, "controller": True}],
        }
        spec = {"nodeName": "node"}
        self.put(f"{_PODS}/{name}", {**_POD, "metadata": metadata, "spec": spec, "status": _status("Running", False)})

    def _get_on(self, path: str, pod: Json) -> None:
        """An engine that waits for prefixes gets ready when it has them; one that does not, by itself."""
        args = self.objects[_DEPLOYMENT]["spec"]["template"]["spec"]["containers"][0]["args"]
        waits = any(each.startswith("--warm-wait-seconds") for each in args)
        if not waits or pod["metadata"]["name"] in self.warmed:
            self.put(path, {**pod, "status": _status("Running", True)})

    warmed: set[str] = field(default_factory=set)

    @property
    def pods(self) -> dict[str, Json]:
        return {path: live for path, live in self.objects.items() if path.startswith(_PODS)}

    # --- what tests look at

    @property
    def names(self) -> set[str]:
        """Of the pods that there are."""
        return {pod["metadata"]["name"] for pod in self.pods.values()}

    @property
    def marked(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods.values() if COST_ANNOTATION in _annotations(pod)}

    @property
    def replicas(self) -> int:
        """Of the Deployment."""
        return int(self.objects[_DEPLOYMENT]["spec"]["replicas"])

    @property
    def route(self) -> Json:
        return dict(json.loads(self.objects[_ROUTE]["data"]["service.json"]))

    @property
    def status(self) -> Json:
        return dict(self.objects[_SERVICE].get("status") or {})

    def told(self, reason: str) -> list[str]:
        """Notes of the events of one reason."""
        return [note for found, note in self.events.values() if found == reason]

    def said(self, type_: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        found = next(each for each in self.status["conditions"] if each["type"] == type_)
        return found["status"], found["reason"]


_REPLICA_SET_UID = "uid-of-the-replica-set"
_POD: Mapping[str, Any] = {"apiVersion": "v1", "kind": "Pod"}


def _status(phase: str, ready: bool) -> Json:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    started = [{**STARTED[0], "started": ready}]
    return {"phase": phase, "podIP": "127.0.0.1", "conditions": conditions, "containerStatuses": started}


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod takes traffic."""
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"]["conditions"])


def _annotations(pod: Json) -> Mapping[str, str]:
    return pod["metadata"].get("annotations") or {}


def _order(pod: Json) -> tuple[bool, int, str]:
    return is_ready(pod), int(_annotations(pod).get(COST_ANNOTATION, "0")), pod["metadata"]["name"]


def _absent(path: str) -> web.Response:
    *_, plural, name = path.split("/")
    details = {"name": name, "kind": plural}
    return web.json_response({"kind": "Status", "reason": "NotFound", "details": details}, status=404)
