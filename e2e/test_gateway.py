"""The gateway as the chart deploys it, in front of pods that real EndpointSlices list, while those come and go.

The pods are stand-ins for engines; real engines behind it are in ``tests/gateway`` and in the tests of the whole.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes import config
from support_chart import render

from chart_release import path_of
from pods import PYTHON
from sapwood_contract.routing import COMPONENT_LABEL, ROUTE_KEY, ROUTING_LABEL, ServiceRoute, to_json
from world import World, eventually

NAMESPACE = "gateway-e2e"
RELEASE = "edge"
STAND_IN = Path(__file__).with_name("engine_stand_in.py").read_text(encoding="utf-8")
_GATEWAY_KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Secret", "Service", "Deployment")


@dataclass(frozen=True, slots=True)
class Gateway:
    """The gateway's Service."""

    url: str

    def is_reached(self) -> bool:
        """Whether kube-proxy knows of a pod: it refuses every connection until then, seconds after the pod is ready."""
        try:
            urllib.request.urlopen(f"{self.url}/readyz", timeout=10).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def ask(self, model: str, *, host: str = "") -> tuple[int, dict[str, Any]]:
        """Send one completion; return status and body."""
        headers = {"Content-Type": "application/json", **({"Host": host} if host else {})}
        body = json.dumps({"model": model, "prompt": "hi"}).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def pods(self, model: str, *, asked: int = 8) -> set[str]:
        """Return which pods answer ``asked`` requests; every one is answered."""
        answers = [self.ask(model) for _ in range(asked)]
        assert {status for status, _ in answers} == {200}, answers
        return {answer["pod"] for _, answer in answers}


@dataclass(frozen=True, slots=True)
class Service:
    """An InferenceService as the operator leaves it to the gateway: route, headless Service and pods."""

    world: World
    namespace: str
    model: str

    @property
    def deployment(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/deployments/chat-engine"

    def apply(self, *, replicas: int) -> None:
        """Create everything."""
        self.world.make_namespace(self.namespace)
        core = f"/api/v1/namespaces/{self.namespace}"
        labels = {"app.kubernetes.io/name": "sapwood", COMPONENT_LABEL: "engine"}
        self.route()
        ports = [{"name": "http", "port": 8000}, {"name": "admin", "port": 8001}]
        self.world.apply(
            f"{core}/services",
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "chat-engine", "labels": labels},
                "spec": {"clusterIP": "None", "selector": labels, "ports": ports},
            },
        )
        container = {
            "name": "engine",
            "image": PYTHON,
            "args": ["-c", STAND_IN],
            "env": [{"name": "MODEL", "value": self.model}],
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8001}, "periodSeconds": 1, "failureThreshold": 1},
            "lifecycle": {"preStop": {"sleep": {"seconds": 3}}},
        }
        self.world.apply(
            f"/apis/apps/v1/namespaces/{self.namespace}/deployments",
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "chat-engine"},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": labels},
                    "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {"containers": [container], "terminationGracePeriodSeconds": 30},
                    },
                },
            },
        )

    def route(self) -> None:
        """Write the ConfigMap."""
        route = ServiceRoute(
            namespace=self.namespace, service="chat", models=(self.model,), engine_service="chat-engine"
        )
        self.world.apply(
            f"/api/v1/namespaces/{self.namespace}/configmaps",
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "chat-routing", "labels": {ROUTING_LABEL: "true"}},
                "data": {ROUTE_KEY: to_json(route)},
            },
        )

    def scale(self, replicas: int) -> None:
        """Change the number of pods."""
        self.world.edit(self.deployment, {"spec": {"replicas": replicas}})

    def roll(self) -> None:
        """Begin to replace every pod."""
        template = {"metadata": {"annotations": {"e2e/rolled": "yes"}}}
        self.world.edit(self.deployment, {"spec": {"template": template}})

    def is_rolled(self) -> bool:
        """Whether nothing is left of the pods before, not even one that ends."""
        pods = self.world.items(f"/api/v1/namespaces/{self.namespace}/pods")
        return all("e2e/rolled" in (pod["metadata"].get("annotations") or {}) for pod in pods)

    def address_of(self, pod: str) -> str:
        """Return a pod's address."""
        found = self.world.get(f"/api/v1/namespaces/{self.namespace}/pods/{pod}")
        assert found is not None
        return str(found["status"]["podIP"])


@pytest.fixture(scope="module")
def world() -> World:
    return World(config.new_client_from_config())  # type: ignore[no-untyped-call]  # the library has no annotations


@pytest.fixture(scope="module")
def gateway(world: World) -> Iterator[Gateway]:
    """Two pods of it, with the account and the rights that the chart gives them."""
    world.make_namespace(NAMESPACE)
    rendered = render({"gateway": {"drainSeconds": 10}}, release=RELEASE, namespace=NAMESPACE)
    made = [
        manifest
        for manifest in rendered
        if manifest["kind"] in _GATEWAY_KINDS
        and manifest["metadata"]["labels"]["app.kubernetes.io/component"] in ("gateway", "secret")
    ]
    for manifest in made:
        world.apply(path_of(manifest).rpartition("/")[0], manifest)
    (deployment,) = (path_of(manifest) for manifest in made if manifest["kind"] == "Deployment")
    (service,) = (path_of(manifest) for manifest in made if manifest["kind"] == "Service")

    def is_available() -> bool:
        status = (world.get(deployment) or {}).get("status", {})
        return bool(status.get("availableReplicas") == 2)

    eventually(is_available, "two gateways that are ready", within_seconds=90)
    found = world.get(service)
    assert found is not None
    gateway = Gateway(f"http://{found['spec']['clusterIP']}")
    eventually(gateway.is_reached, "the gateways behind their Service", within_seconds=90)
    yield gateway
    for manifest in made:
        world.delete(path_of(manifest))
    world.delete(f"/api/v1/namespaces/{NAMESPACE}")


@pytest.fixture
def service(world: World) -> Iterator[Service]:
    """A service of its own for each test, with two pods."""
    name = f"gateway-{uuid.uuid4().hex[:8]}"
    made = Service(world, name, f"model-of-{name}")
    made.apply(replicas=2)
    yield made
    world.delete(f"/api/v1/namespaces/{name}")


def wait_for_pods(gateway: Gateway, service: Service, num_pods: int) -> set[str]:
    """Return the pods that answer, once both gateways know of ``num_pods``."""

    def found() -> set[str]:
        answers = [gateway.ask(service.model) for _ in range(6 * num_pods)]
        pods = {str(answer.get("pod")) for _, answer in answers}
        return pods if {status for status, _ in answers} == {200} and len(pods) == num_pods else set()

    return eventually(found, f"{num_pods} pods behind the gateway", within_seconds=60)


@contextmanager
def asking(gateway: Gateway, service: Service) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """Keep four clients asking, one request after the other; yields the answers, complete at the end."""
    answers: list[tuple[int, dict[str, Any]]] = []
    stop = threading.Event()

    def client() -> None:
        while not stop.is_set():
            answers.append(gateway.ask(service.model))

    with ThreadPoolExecutor(4) as clients:
        running = [clients.submit(client) for _ in range(4)]
        try:
            yield answers
        finally:
            stop.set()
    for each in running:
        each.result()


def refused(answers: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    return [answer for answer in answers if answer[0] != 200]


def test_pods_are_found_as_they_come_and_a_service_is_known_without_any(gateway: Gateway, service: Service) -> None:
    wait_for_pods(gateway, service, 2)
    service.scale(0)

    def code() -> bool:
        status, answer = gateway.ask(service.model)
        return status == 503 and answer["error"]["code"] == "no_replica_ready"

    eventually(code, "a service without replicas")
    service.scale(1)
    wait_for_pods(gateway, service, 1)


def test_a_rolling_change_loses_no_request(gateway: Gateway, service: Service) -> None:
    before = wait_for_pods(gateway, service, 2)
    with asking(gateway, service) as answers:
        service.roll()
        eventually(service.is_rolled, "pods of the new revision alone", within_seconds=90)
    assert refused(answers) == []
    assert len(answers) > 20
    assert wait_for_pods(gateway, service, 2).isdisjoint(before)


def test_a_pod_that_is_no_longer_ready_gets_nothing(gateway: Gateway, service: Service) -> None:
    pods = wait_for_pods(gateway, service, 2)
    going, staying = sorted(pods)
    urllib.request.urlopen(f"http://{service.address_of(going)}:8000/unready", b"{}", timeout=10).close()
    eventually(lambda: gateway.pods(service.model) == {staying}, "the other pod alone")


def test_the_host_names_the_service(gateway: Gateway, service: Service) -> None:
    wait_for_pods(gateway, service, 2)
    own = f"chat.{service.namespace}.svc.cluster.local"
    assert gateway.ask(service.model, host=own)[0] == 200
    status, answer = gateway.ask("another", host=own)
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert service.model in answer["error"]["message"]


def test_each_of_two_models_is_answered_by_the_pods_that_have_it_while_a_service_changes(
    gateway: Gateway, service: Service
) -> None:
    wait_for_pods(gateway, service, 2)
    changed = replace(service, model="another-" + service.model)

    def answers(former: int, present: int) -> bool:
        codes = {(gateway.ask(service.model)[0], gateway.ask(changed.model)[0]) for _ in range(6)}
        return codes == {(former, present)}

    changed.route()
    eventually(lambda: answers(200, 503), "pods of the former model alone")
    changed.apply(replicas=2)
    eventually(lambda: answers(404, 200), "pods of the present model alone", within_seconds=90)


def test_the_api_server_goes_and_comes_back_and_no_request_is_lost(
    gateway: Gateway, service: Service, restart_api_server: Callable[[], None]
) -> None:
    wait_for_pods(gateway, service, 2)
    with asking(gateway, service) as answers:
        restart_api_server()
        service.scale(3)
        wait_for_pods(gateway, service, 3)
    assert refused(answers) == []
