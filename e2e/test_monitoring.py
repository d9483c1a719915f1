"""From PodMonitors and PrometheusRules to metrics and alerts: the Prometheus Operator makes a configuration of them,
and Prometheus scrapes and judges by it.

The chart finds the kinds by itself and makes both for its own programs, the operator for each service. The service here
promises a first token within a millisecond, so that it breaks its promise with every answer.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import config

from chart_release import NAMESPACE as SYSTEM
from chart_release import Release, connect
from cluster import processes
from cluster.binaries import PROMETHEUS, PROMETHEUS_OPERATOR, cached_path
from cluster.definitions import PROMETHEUS_OPERATOR as MONITORING_APIS
from cluster.extras import start_prometheus, start_prometheus_operator
from cluster.layout import Layout
from optional_apis import GATEWAY, HTTP_ROUTES, MONITORING, REFERENCE_GRANTS, installed
from plugin import Person, done, kubectl, make_person
from pods import PYTHON, Pods
from prometheus_api import Prometheus
from small_engines import MODEL, READY_SECONDS, TWO_ENGINES
from talking import talking
from world import JsonObject, World, condition, eventually, service_path

WATCHING = "monitoring"
"""Where Prometheus is."""
TEAM = f"monitored-{os.getpid()}"
LABELS = {"release": "e2e"}
"""By which Prometheus selects: what lacks them it does not see."""
VALUES = {
    "metrics": {"labels": LABELS, "podMonitor": {"interval": "1s"}},
    "gateway": {"routesFrom": [TEAM], "drainSeconds": 5},
}
SERVICE: dict[str, Any] = {
    **{field: value for field, value in TWO_ENGINES.items() if field != "replicas"},
    "autoscaling": {"minReplicas": 2, "maxReplicas": 2, "slo": {"ttftP90": "1ms"}},
    "observability": {
        "podMonitor": "Enabled",
        "alerts": True,
        "tracing": {"endpoint": "http://127.0.0.1:4318", "samplingRatio": "1"},  # nobody listens there
    },
    "exposure": {"gateway": {"parentRefs": [{"name": "edge"}], "hostnames": ["chat.example.com"]}},
}
SELECTED = {"matchLabels": LABELS}
PROMETHEUS_OBJECT: JsonObject = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "Prometheus",
    "metadata": {"name": "e2e", "namespace": WATCHING},
    "spec": {
        "scrapeInterval": "1s",
        "evaluationInterval": "1s",
        "podMonitorSelector": SELECTED,
        "podMonitorNamespaceSelector": {},
        "ruleSelector": SELECTED,
        "ruleNamespaceSelector": {},
    },
}
NUM_JOBS = 3
"""PodMonitors: of the service's engines, of operator and gateway."""
ASK = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"


@pytest.fixture(scope="module")
def world(harness: Layout) -> World:
    missing = [p.name for p in (PROMETHEUS, PROMETHEUS_OPERATOR) if not cached_path(p, os.environ).exists()]
    if missing:
        pytest.skip(f"needs {missing}: python -m cluster up --with prometheus --with optional-apis")
    return World(config.new_client_from_config(str(harness.kubeconfig)))  # type: ignore[no-untyped-call]  # as it is


@pytest.fixture(scope="module")
def release(world: World) -> Iterator[Release]:
    """The chart, installed where all the APIs are."""
    apis = [(MONITORING_APIS, name) for name in MONITORING_APIS.paths(os.environ)]
    found = connect(world)
    found.uninstall()
    with installed(world, *apis, HTTP_ROUTES, REFERENCE_GRANTS):
        found.install(VALUES)
        yield found
        found.uninstall()


@pytest.fixture(scope="module")
def service(world: World, release: Release) -> Iterator[JsonObject]:
    """A service that serves, with a route from another namespace."""
    world.make_namespace(TEAM)
    world.make_service(TEAM, **SERVICE)

    def serves() -> JsonObject | None:
        found = world.service(TEAM)
        return found if condition(found, "Ready").get("status") == "True" else None

    yield eventually(serves, "a service that serves", within_seconds=READY_SECONDS)
    world.delete(f"/api/v1/namespaces/{TEAM}")


@pytest.fixture(scope="module")
def prometheus(harness: Layout, world: World, service: JsonObject) -> Iterator[Prometheus]:
    """A Prometheus with the configuration and the rules that its operator has written."""
    world.make_namespace(WATCHING)
    start_prometheus_operator(harness, os.environ)
    world.apply(f"{MONITORING}/namespaces/{WATCHING}/prometheuses", PROMETHEUS_OBJECT)
    written = eventually(lambda: configuration(world), "a configuration with three jobs", within_seconds=60)
    for job in written["scrape_configs"]:
        for discovery in job["kubernetes_sd_configs"]:
            discovery["kubeconfig_file"] = str(harness.kubeconfig)  # this Prometheus runs in no pod
    rules = eventually(lambda: rule_files(world), "the rules of the service, gateways and operator", within_seconds=60)
    used = {"scrape_configs": written["scrape_configs"], "global": written["global"]}
    yield Prometheus(start_prometheus(harness, used, os.environ, rules=rules))
    processes.stop(harness, "prometheus")
    processes.stop(harness, "prometheus-operator")
    world.delete(f"/api/v1/namespaces/{WATCHING}")


def configuration(world: World) -> JsonObject | None:
    """Return what the Prometheus Operator has made of the PodMonitors, once all are in it."""
    secret = world.get(f"/api/v1/namespaces/{WATCHING}/secrets/prometheus-e2e")
    packed = ((secret or {}).get("data") or {}).get("prometheus.yaml.gz", "")
    if not packed:
        return None
    # The reloader beside each Prometheus fills in which one it is.
    text = gzip.decompress(base64.b64decode(packed)).decode().replace("$(SHARD)", "0")
    found: JsonObject = yaml.safe_load(text)
    return found if len(found.get("scrape_configs") or ()) == NUM_JOBS else None


def rule_files(world: World) -> dict[str, str] | None:
    """Return what it has made of the PrometheusRules, once all are in it: by NAMESPACE-NAME-UID.yaml."""
    found: dict[str, str] = {}
    for made in world.items(f"/api/v1/namespaces/{WATCHING}/configmaps"):
        if made["metadata"]["name"].startswith("prometheus-e2e-rulefiles"):
            found |= made.get("data") or {}
    return found if len(found) == 3 else None


def test_the_chart_finds_the_kinds_and_watches_its_own_programs(world: World, release: Release) -> None:
    made = {
        plural: {one["metadata"]["name"]: one for one in world.items(f"{MONITORING}/namespaces/{SYSTEM}/{plural}")}
        for plural in ("podmonitors", "prometheusrules")
    }
    assert set(made["podmonitors"]) == {"sapwood-operator", "sapwood-gateway"}
    assert set(made["prometheusrules"]) == {"sapwood-operator", "sapwood-gateway"}
    assert {m["spec"]["podMetricsEndpoints"][0]["interval"] for m in made["podmonitors"].values()} == {"1s"}


def test_every_program_is_scraped_under_its_pods_name_and_an_engine_under_its_services(
    world: World, prometheus: Prometheus
) -> None:
    def all_up() -> list[dict[str, Any]]:
        found = prometheus.targets()
        return found if len(found) == 5 and {target["health"] for target in found} == {"up"} else []

    found = eventually(all_up, "two engines, an operator and two gateways scraped", within_seconds=60)
    seen = {
        (*(labels[name] for name in ("job", "namespace", "pod", "container")), labels.get("inference_service"))
        for labels in (target["labels"] for target in found)
    }
    expected = {
        (f"{namespace}/{name}", namespace, pod["metadata"]["name"], container, subject)
        for namespace, name, container, subject in (
            (TEAM, "chat-engine", "engine", "chat"),
            (SYSTEM, "sapwood-operator", "operator", None),
            (SYSTEM, "sapwood-gateway", "gateway", None),
        )
        for pod in world.items(f"/api/v1/namespaces/{namespace}/pods")
        if pod["metadata"]["name"].startswith(name)
    }
    assert seen == expected


@pytest.mark.parametrize(
    "series",
    [
        *("sapwood_operator_leader", "sapwood_kv_capacity_tokens", "sapwood_gateway_replicas"),
        f'sapwood_autoscaler_desired_replicas{{namespace="{TEAM}",name="chat",pod=~"sapwood-operator-.*"}}',
    ],
    ids=lambda series: series.partition("{")[0],
)
def test_the_programs_own_series_arrive(prometheus: Prometheus, series: str) -> None:
    eventually(lambda: prometheus.query(series), series)


def test_prometheus_takes_every_rule_of_the_service_and_of_gateways(prometheus: Prometheus) -> None:
    def evaluated() -> list[dict[str, Any]]:
        found = prometheus.rules()
        # Those of long windows have their first turn some time within three minutes.
        return found if sum(rule["health"] != "unknown" for rule in found) > len(found) / 2 else []

    found = eventually(evaluated, "rules that were evaluated")
    assert not [(rule["name"], rule["lastError"]) for rule in found if rule["health"] == "err"]
    assert {Path(rule["file"]).name.rpartition("-engine-")[0] or SYSTEM for rule in found} == {f"{TEAM}-chat", SYSTEM}


def alert_of(prometheus: Prometheus, name: str) -> dict[str, Any] | None:
    firing = [alert for alert in prometheus.alerts() if alert["state"] == "firing"]
    return next((alert for alert in firing if alert["labels"]["alertname"] == name), None)


def test_a_broken_promise_fires_an_alert_whose_runbook_can_be_read_in_the_cluster(
    world: World, prometheus: Prometheus
) -> None:
    gateway = world.call("GET", f"/api/v1/namespaces/{SYSTEM}/services/sapwood-gateway")["spec"]["clusterIP"]
    with talking(f"http://{gateway}", f"chat.{TEAM}", MODEL, (1, 1)):
        alert = eventually(lambda: alert_of(prometheus, "TTFTBudgetBurn"), "the alert", within_seconds=120)
    labels = {name: alert["labels"][name] for name in ("namespace", "inference_service", "severity")}
    assert labels == {"namespace": TEAM, "inference_service": "chat", "severity": "critical"}
    url = alert["annotations"]["runbook_url"]
    assert url == f"http://sapwood-operator.{SYSTEM}.svc.cluster.local/runbooks#ttftbudgetburn"
    page = Pods(world, TEAM).run("on-call", {"name": "main", "image": PYTHON, "args": ["-c", ASK, url]})
    assert '<h2 id="ttftbudgetburn">TTFTBudgetBurn</h2>' in page


@pytest.fixture
def person(service: JsonObject, tmp_path: Path) -> Iterator[Person]:
    """Somebody who may do nothing."""
    found = make_person(TEAM, "anna", tmp_path)
    yield found
    found.may_no_longer(SYSTEM)


def test_who_may_ask_the_operator_alone_is_told_what_more_replicas_would_do(person: Person) -> None:
    """Through the API server to the operator's Service, and of the load of the test before."""
    question = ("sapwood", "what-if", "chat", f"--namespace={TEAM}", "--replicas=3", "--memory=2")
    refused = kubectl(*question, kubeconfig=person.kubeconfig)
    assert refused.returncode == 1
    assert "needs get of services/proxy, sapwood-operator:http, in namespace sapwood" in refused.stderr

    person.may("sapwood-operator-what-if", SYSTEM)
    said = done(*question, kubeconfig=person.kubeconfig)
    rows = {cells[0]: cells[1:] for cells in (re.split("  +", line.strip()) for line in said.splitlines())}
    assert rows["2 replicas"] == ["3 replicas, 2x memory"]
    assert re.fullmatch(r"(at least )?\d+ %", rows["hit ratio"][1])
    assert rows["the policy goes there"] == ["no: maxReplicas is 2"]


def test_a_service_that_scales_explains_itself(service: JsonObject) -> None:
    said = done("sapwood", "explain", "chat", f"--namespace={TEAM}")
    assert "2 replicas wanted, 2 asked for, 2 ready" in said
    assert re.search(r"AutoscalingActive +True +Active: ", said)


def test_times_to_first_token_lead_to_the_traces_of_requests(prometheus: Prometheus) -> None:
    """Exemplars come with OpenMetrics alone, which nobody asked for but Prometheus itself."""
    found = eventually(lambda: prometheus.exemplars("sapwood_time_to_first_token_seconds_bucket"), "exemplars")
    assert all(re.fullmatch("[0-9a-f]{32}", labels["trace_id"]) for labels in found)


def test_every_expression_of_the_operators_dashboard_has_data(world: World, prometheus: Prometheus) -> None:
    """As the ConfigMap of the chart has it."""
    path = f"/api/v1/namespaces/{SYSTEM}/configmaps/sapwood-dashboards-operator"
    dashboard = json.loads(world.call("GET", path)["data"]["sapwood-operator.json"])
    expressions = {target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())}
    assert len(expressions) >= 5

    def has_data(expression: str) -> bool:
        for name, value in (("$namespace", ".*"), ("$pod", ".*"), ("$__rate_interval", "5m")):
            expression = expression.replace(name, value)
        return any(not math.isnan(value) for _, value in prometheus.query(expression))

    world.edit(service_path(TEAM), {"spec": {"routing": {"queue": {"maxRequests": 5}}}})  # a turn takes some time
    eventually(lambda: not [each for each in expressions if not has_data(each)], "data for every panel")


def test_a_route_from_another_namespace_is_granted_the_gateways_service(world: World, service: JsonObject) -> None:
    """As an implementation of the Gateway API decides it."""
    route = eventually(lambda: world.get(f"{GATEWAY}/v1/namespaces/{TEAM}/httproutes/chat"), "the route")
    [backend] = route["spec"]["rules"][0]["backendRefs"]
    target = world.call("GET", f"/api/v1/namespaces/{backend['namespace']}/services/{backend['name']}")
    assert backend["port"] in {port["port"] for port in target["spec"]["ports"]}
    granted = [
        (source["group"], source["kind"], source["namespace"], to["group"], to["kind"], to.get("name", backend["name"]))
        for grant in world.items(f"{GATEWAY}/v1beta1/namespaces/{backend['namespace']}/referencegrants")
        for source in grant["spec"]["from"]
        for to in grant["spec"]["to"]
    ]
    assert granted == [("gateway.networking.k8s.io", "HTTPRoute", TEAM, "", "Service", backend["name"])]
