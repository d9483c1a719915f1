"""Tenants and prefixes in a cluster: real engines behind the chart's gateways, which know callers by their keys and
send a conversation where its beginning has been computed.

One service of two replicas is used by every test in turn. The tests speak to ClusterIPs and pods, so on a cluster of
yours they have to run inside its network, and its nodes need the folder that the engines of a node share.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from kubernetes import config

from chart_release import NAMESPACE as RELEASE_NAMESPACE
from chart_release import connect
from pods import PYTHON, Pods
from small_engines import MODEL, READY_SECONDS, TWO_ENGINES
from world import OWNED, JsonObject, World, child_path, condition, eventually, service_path

NAMESPACE = f"tenants-{os.getpid()}"
TENANTS = f"/apis/serving.sapwood.dev/v1alpha1/namespaces/{NAMESPACE}/tenants"
SPEC: dict[str, Any] = {
    **TWO_ENGINES,
    "routing": {"policy": "PrefixAffinity", "queue": {"maxRequests": 10, "maxWait": "120s"}},
    "tenancy": {"authentication": "ApiKey", "cacheSharing": "Tenant"},
    "rollout": {"drainTimeout": "5s"},
}
ACME, ZETA, LATE, STRANGER = "key-of-acme", "key-of-zeta", "key-of-late", "key-of-nobody"
HIDDEN, FORBIDDEN = "key-of-hidden", "key-of-forbidden"
KEY_SECRET = "tenant-keys"
"""The Secret that gateways may read."""
OPERATOR_POD = {"app.kubernetes.io/name": "sapwood", "app.kubernetes.io/component": "operator"}
"""Labels of pods that an engine's NetworkPolicy lets in; nothing else looks at them."""
_numbers = count(1)


def kubectl(*args: str) -> str:
    done = subprocess.run(["kubectl", *args], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass(frozen=True, slots=True)
class Shop:
    """The service, and the gateways in front of it."""

    world: World
    url: str

    def ask(self, key: str, *messages: dict[str, str], timeout: float = 60) -> tuple[int, JsonObject]:
        """Send one chat; return status and body. An empty key: none is sent."""
        body = {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0}
        headers = {"Content-Type": "application/json", "Host": f"chat.{NAMESPACE}"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def status(self, key: str) -> int:
        """Return the status of a short request."""
        return self.ask(key, user("Hi"))[0]

    def make_tenant(self, name: str, *keys: str, **spec: Any) -> None:
        """Apply a Tenant with these keys."""
        written = [{"name": f"key-{n}", "sha256": hashlib.sha256(k.encode()).hexdigest()} for n, k in enumerate(keys)]
        manifest = {
            "apiVersion": "serving.sapwood.dev/v1alpha1",
            "kind": "Tenant",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"apiKeys": written, **spec},
        }
        self.world.apply(TENANTS, manifest)

    def make_hidden_tenant(self, name: str, key: str, *, secret: str) -> None:
        """Apply a Tenant whose hash is in a Secret, and that Secret."""
        sha256 = hashlib.sha256(key.encode()).hexdigest()
        metadata = {"name": secret, "namespace": NAMESPACE}
        manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {name: sha256}}
        self.world.apply(f"/api/v1/namespaces/{NAMESPACE}/secrets", manifest)
        self.make_tenant(name, apiKeys=[{"name": "first", "sha256SecretRef": {"name": secret, "key": name}}])

    def reason(self, tenant: str) -> str:
        """Return why a Tenant is, or is not, Ready; empty while nothing is said of its present spec."""
        live = self.world.call("GET", f"{TENANTS}/{tenant}")
        found = condition(live, "Ready")
        return str(found["reason"]) if found.get("observedGeneration") == live["metadata"]["generation"] else ""

    def pods(self) -> list[JsonObject]:
        """The engines' pods."""
        return self.world.items(f"/api/v1/namespaces/{NAMESPACE}/pods?{OWNED}")

    def wait_ready(self) -> None:
        """Return once the service is ready at its present spec."""

        def is_ready() -> bool:
            service = self.world.call("GET", service_path(NAMESPACE))
            found = condition(service, "Ready")
            return (found.get("status"), found.get("observedGeneration")) == ("True", service["metadata"]["generation"])

        eventually(is_ready, "the service ready", within_seconds=READY_SECONDS)

    def metric(self, series: str) -> float:
        """Return the sum of a series over all gateways; ``series`` begins the line, labels in part."""
        selector = "labelSelector=app.kubernetes.io%2Fcomponent%3Dgateway"
        total = 0.0
        for pod in self.world.items(f"/api/v1/namespaces/{RELEASE_NAMESPACE}/pods?{selector}"):
            with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8081/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            total += sum(float(line.split()[-1]) for line in lines if line.startswith(series))
        return total


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def cached_tokens(answer: JsonObject) -> int:
    return int((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    """Install Sapwood, and serve with two replicas to two tenants."""
    world = World(config.new_client_from_config())  # type: ignore[no-untyped-call]  # as the library is
    release = connect(world)
    release.uninstall()  # what an earlier module left
    release.install(
        {"gateway": {"drainSeconds": 5, "promptPatienceSeconds": 20, "tenants": {"keySecrets": [KEY_SECRET]}}}
    )
    service = world.get(f"/api/v1/namespaces/{RELEASE_NAMESPACE}/services/sapwood-gateway")
    assert service is not None
    made = Shop(world, f"http://{service['spec']['clusterIP']}")
    world.make_namespace(NAMESPACE)
    made.make_tenant("acme", ACME)
    made.make_tenant("zeta", ZETA)
    world.make_service(NAMESPACE, **SPEC)
    made.wait_ready()
    eventually(lambda: made.status(ACME) == 200, "an answer to a tenant's key", within_seconds=60)
    yield made
    world.delete(service_path(NAMESPACE))
    eventually(lambda: not made.pods(), "the engines' end", within_seconds=120)
    world.delete(f"/api/v1/namespaces/{NAMESPACE}")
    release.uninstall()


def test_only_the_key_of_a_tenant_is_answered(shop: Shop) -> None:
    assert [shop.status(key) for key in ("", STRANGER, ACME, ZETA)] == [401, 401, 200, 200]


def test_the_status_tells_of_keys_and_kubectl_shows_it(shop: Shop) -> None:
    eventually(lambda: {shop.reason("acme"), shop.reason("zeta")} == {"Ready"}, "both tenants ready")
    head, *rows = kubectl("get", "itn", "--namespace", NAMESPACE).splitlines()
    assert head.split() == ["NAME", "READY", "KEYS", "GROUP", "SUSPENDED", "REASON", "AGE"]
    assert [re.split(r"\s+", row)[:3] for row in rows] == [["acme", "True", "1"], ["zeta", "True", "1"]]


def wait_until_prompts_are_read(shop: Shop) -> None:
    """Return once every gateway has the tokenizer of the model, which it asks an engine for at its first prompt."""

    def are_read() -> bool:
        before = shop.metric("sapwood_gateway_unread_prompts_total")
        assert {shop.status(ACME) for _ in range(10)} == {200}
        return shop.metric("sapwood_gateway_unread_prompts_total") == before

    eventually(are_read, "prompts that are read")


def wait_until_blocks_are_known(shop: Shop) -> None:
    """Return once gateways hear of no more blocks: a person who asks again is slower than an engine's events."""
    counts = [-1.0]

    def are_quiet() -> bool:
        counts.append(shop.metric("sapwood_gateway_index_blocks"))
        return counts[-1] == counts[-2]

    eventually(are_quiet, "no more blocks to hear of")


def test_each_conversation_goes_on_where_its_beginning_was_computed(shop: Shop) -> None:
    def opening(number: int) -> list[dict[str, Any]]:
        story = f"This is conversation number {number}, about the town of N{number}. " + "It has a long history. " * 60
        return [user(story)]

    def go_on(messages: list[dict[str, Any]]) -> int:
        status, answer = shop.ask(ACME, *messages)
        assert status == 200, answer
        messages += [answer["choices"][0]["message"], user("And then?")]
        return cached_tokens(answer)

    wait_until_prompts_are_read(shop)
    counted = (
        'sapwood_gateway_route_total{result="prefix"}',
        "sapwood_gateway_predicted_match_tokens_total",
        "sapwood_gateway_actual_match_tokens_total",
        *(f'sapwood_gateway_match_predictions_total{{result="{how}"}}' for how in ("within_page", "less", "more")),
        "sapwood_gateway_unread_prompts_total",
    )
    before = [shop.metric(name) for name in counted]
    conversations = [opening(number) for number in range(4)]
    cached = []
    for _ in range(3):
        with ThreadPoolExecutor(4) as threads:
            cached.append(list(threads.map(go_on, conversations)))
        wait_until_blocks_are_known(shop)
    by_prefix, predicted, actual, *results = (shop.metric(n) - b for n, b in zip(counted, before, strict=True))
    assert min(min(later) for later in cached[1:]) >= 300, cached
    assert by_prefix >= 8
    assert predicted > 0
    assert actual > 0
    assert results == [12, 0, 0, 0]


def test_a_tenant_finds_nothing_of_what_another_one_has_asked(shop: Shop) -> None:
    secret = user(f"The merger of {os.getpid()} is planned for May. " + "Nobody may know of it. " * 12)
    assert shop.ask(ACME, secret)[0] == 200
    assert cached_tokens(shop.ask(ACME, secret)[1]) >= 48
    shop.make_tenant("late", LATE)

    def first_answer() -> JsonObject:
        """It is the first: not even the system prompt of the chat template is cached for this tenant."""
        status, answer = shop.ask(LATE, secret)
        return answer if status == 200 else {}

    assert cached_tokens(eventually(first_answer, "an answer to a new tenant")) == 0
    eventually(lambda: cached_tokens(shop.ask(LATE, secret)[1]) >= 48, "what the tenant itself has asked")


def test_a_suspended_tenant_is_refused_within_seconds_and_comes_back(shop: Shop) -> None:
    shop.make_tenant("zeta", ZETA, suspended=True)
    eventually(lambda: {shop.status(ZETA) for _ in range(4)} == {403}, "refused by every gateway", within_seconds=10)
    eventually(lambda: shop.reason("zeta") == "Suspended", "the status tells it")
    assert shop.status(ACME) == 200
    shop.make_tenant("zeta", ZETA, suspended=False)
    eventually(lambda: {shop.status(ZETA) for _ in range(4)} == {200}, "answered again", within_seconds=10)


def test_a_key_of_two_tenants_is_nobodys_until_one_of_them_goes(shop: Shop) -> None:
    shop.make_tenant("thief", ZETA)
    eventually(lambda: {shop.reason("zeta"), shop.reason("thief")} == {"KeyConflict"}, "both told")
    eventually(lambda: {shop.status(ZETA) for _ in range(4)} == {401}, "the key refused", within_seconds=10)
    shop.world.delete(f"{TENANTS}/thief")
    eventually(lambda: shop.reason("zeta") == "Ready", "ready again")
    eventually(lambda: {shop.status(ZETA) for _ in range(4)} == {200}, "answered again", within_seconds=10)


def test_a_hash_in_a_secret_counts_where_the_chart_lets_gateways_read_that_and_nowhere_else(shop: Shop) -> None:
    shop.make_hidden_tenant("forbidden", FORBIDDEN, secret="other-keys")
    shop.make_hidden_tenant("hidden", HIDDEN, secret=KEY_SECRET)
    eventually(lambda: {shop.status(HIDDEN) for _ in range(4)} == {200}, "the key from the Secret", within_seconds=30)
    eventually(lambda: {shop.reason("hidden"), shop.reason("forbidden")} == {"Ready"}, "statuses that name the Secrets")
    assert {shop.status(FORBIDDEN) for _ in range(4)} == {401}
    shop.world.delete(f"/api/v1/namespaces/{NAMESPACE}/secrets/{KEY_SECRET}")
    eventually(lambda: {shop.status(HIDDEN) for _ in range(4)} == {401}, "the key gone", within_seconds=60)
    for name in ("hidden", "forbidden"):
        shop.world.delete(f"{TENANTS}/{name}")


def test_an_engine_answers_nobody_but_the_gateway(shop: Shop) -> None:
    address = shop.pods()[0]["status"]["podIP"]
    script = f"""
import json, urllib.error, urllib.request as u

def status(url, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    request = u.Request(url, data, {{"Content-Type": "application/json", **headers}})
    try:
        return u.urlopen(request, timeout=30).status
    except urllib.error.HTTPError as refused:
        return refused.code

ask = {{"model": "{MODEL}", "prompt": "Hi", "max_tokens": 1}}
http, admin = "http://{address}:8000/v1/completions", "http://{address}:8001"
print(status(http, ask), status(http, ask, Authorization="Bearer {ACME}"),
      status(http, ask, **{{"X-Sapwood-Tenant": "tenant:{NAMESPACE}/acme"}}),
      status(admin + "/admin/load"), status(admin + "/readyz"))
"""
    pods, name = Pods(shop.world, RELEASE_NAMESPACE), f"visitor-{next(_numbers)}"
    container = {"name": "main", "image": PYTHON, "args": ["-c", script]}
    pods.make(name, container, labels=OPERATOR_POD, restartPolicy="Never")
    said = pods.output(name).split()
    pods.delete(name)
    assert said == ["401", "401", "403", "401", "200"]


def test_the_policy_of_the_network_lets_the_gateway_reach_every_port_of_an_engine(shop: Shop) -> None:
    policy = shop.world.call("GET", child_path(NAMESPACE, "NetworkPolicy", "chat-engine"))
    open_ports = {
        port["port"]
        for rule in policy["spec"]["ingress"]
        if any(peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway" for peer in rule["from"])
        for port in rule["ports"]
    }
    (container,) = shop.pods()[0]["spec"]["containers"]
    assert open_ports == {port["containerPort"] for port in container["ports"]} == {8000, 8001, 8002, 8003}


def test_a_change_of_routing_alone_replaces_no_replica(shop: Shop) -> None:
    path = child_path(NAMESPACE, "Deployment", "chat-engine")
    before = shop.world.call("GET", path)["metadata"]["generation"]
    routing = {**SPEC["routing"], "hotPrefixReplicas": {"min": 1, "max": 2}}
    shop.world.make_service(NAMESPACE, **{**SPEC, "routing": routing})
    shop.wait_ready()
    route = shop.world.call("GET", child_path(NAMESPACE, "ConfigMap", "chat-routing"))["data"]["service.json"]
    assert json.loads(route)["hot_prefix_replicas"] == [1, 2]
    assert shop.world.call("GET", path)["metadata"]["generation"] == before


def test_a_request_to_a_service_that_is_scaled_to_zero_is_held_until_a_replica_is_back(shop: Shop) -> None:
    shop.world.make_service(NAMESPACE, **{**SPEC, "replicas": 0})
    eventually(lambda: not shop.pods(), "no replica", within_seconds=60)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(shop.ask, ACME, user("Are you there?"), timeout=150)
        eventually(lambda: shop.metric("sapwood_gateway_queued_requests") == 1, "a request that waits")
        shop.world.make_service(NAMESPACE, **{**SPEC, "replicas": 1})
        status, answer = asked.result()
    assert status == 200, answer
