"""The chart renders what Kubernetes accepts, whatever its schema allows."""

from __future__ import annotations

import base64
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no annotations
from kubernetes_validate.utils import all_versions, schema_contents  # type: ignore[import-untyped]  # no py.typed
from referencing import Registry, Resource
from support_chart import CHART, Manifest, arguments, chart, files, notes, of_kind, pods, refusal, render, schema
from support_schema_values import values_of

from sapwood_contract.trust import secret_of
from sapwood_gateway.shell.options import parse
from sapwood_operator.cli import read_options

MINOR_VERSIONS = all_versions()[-4:]
PROMETHEUS = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}
EVERYTHING: dict[str, Any] = {
    "images": {"registry": "registry.example/ml", "pullSecrets": ["registry"]},
    "watchNamespaces": ["team-a", "team-b"],
    "metrics": {
        "peers": [PROMETHEUS],
        "labels": {"release": "prometheus"},
        "podMonitor": {"create": "Always"},
        "rules": {"create": "Always", "runbookUrl": "https://example.com/runbooks"},
        "dashboards": {"labels": {"dashboards": "yes"}, "folder": "Models"},
    },
    "operator": {
        "replicas": 2,
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "arch", "operator": "In", "values": ["arm64"]}]}
                    ]
                }
            }
        },
        "extraEnv": [{"name": "HTTPS_PROXY", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "address"}}}],
        "priorityClassName": "system-cluster-critical",
    },
    "gateway": {
        "ingressFrom": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}],
        "routesFrom": ["team-a", "123"],
        "service": {"type": "LoadBalancer", "annotations": {"load-balancer.example/internal": "true"}},
        "podAnnotations": {"example.com/team": "ml"},
        "quotas": {"storeSecret": {"name": "redis"}, "storeFailure": "Closed"},
        "tracing": {"endpoint": "http://collector.tracing.svc:4318", "samplingRatio": 1},
        "console": True,
        "adminKeySecret": {"name": "admin", "key": "value"},
    },
    "secret": {"existingSecret": "shared"},
}
VALUES: dict[str, dict[str, Any]] = {
    "nothing set": {},
    "everything set": EVERYTHING,
    "nothing optional": {
        "crds": {"install": False},
        "networkPolicy": {"enabled": False},
        "metrics": {"podMonitor": {"create": "Never"}, "rules": {"create": "Never"}, "dashboards": {"enabled": False}},
        "gateway": {"replicas": 1, "topologySpread": []},
    },
}
NOT_OF_KUBERNETES = {"PodMonitor", "PrometheusRule", "ReferenceGrant"}
"""Kinds that kubernetes-validate has no schema of."""


@cache
def strict(version: str, kind: str, api_version: str) -> Any:
    """Return the validator that kubernetes-validate makes anew for each object, reading for a second."""
    group, _, number = api_version.rpartition("/")
    name = "-".join(filter(None, [kind.lower(), group.partition(".")[0], number]))
    folder = f"kubernetes-json-schema/v{version}-local-strict"
    own = schema_contents(f"{folder}/{name}.json", version)
    return Draft202012Validator(own, registry=Resource.from_contents(own) @ definitions(folder, version))


@cache
def definitions(folder: str, version: str) -> Registry[Any]:
    return Resource.from_contents(schema_contents(f"{folder}/_definitions.json", version)) @ Registry()


def built_in(manifests: tuple[Manifest, ...]) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] not in NOT_OF_KUBERNETES]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_lint_finds_nothing_to_warn_about(values: dict[str, Any]) -> None:
    report = helm_python.lint(CHART, values, strict=True)
    assert not report["errors"]
    assert not [message for message in report["messages"] if message["severity"] > 1]


@pytest.mark.parametrize("version", MINOR_VERSIONS)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_manifest_is_valid_in_the_last_four_minor_versions(version: str, values: dict[str, Any]) -> None:
    for manifest in built_in(render(values)):
        strict(version, manifest["kind"], manifest["apiVersion"]).validate(manifest)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(values_of(schema()))
def test_whatever_the_schema_allows_renders_valid_manifests_and_arguments_that_the_programs_take(
    values: dict[str, Any],
) -> None:
    manifests = render(values)
    for manifest in built_in(manifests):
        for version in MINOR_VERSIONS:
            strict(version, manifest["kind"], manifest["apiVersion"]).validate(manifest)
    read_options(arguments(manifests, "operator"))
    parse(arguments(manifests, "gateway"))


def test_a_packed_chart_renders_the_same(tmp_path: Path) -> None:
    values = {"secret": {"existingSecret": "ours"}}  # else each rendering has a random one of its own
    with helm_python.Chart.load(chart().save(tmp_path)) as packed:
        assert packed.render(values, name="sapwood", namespace="prod") == files(values)


def test_the_images_are_of_the_version_that_is_packed_beside_the_chart() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert about["appVersion"] == about["version"] == project["version"]


def test_an_image_named_in_full_is_taken_as_it_is_and_others_come_from_the_registry() -> None:
    manifests = render({"images": {"registry": "registry.example/ml", "engine": "other.example/engine@sha256:00"}})
    images = {container["image"] for pod in pods(manifests).values() for container in pod["containers"]}
    assert images == {"registry.example/ml/sapwood/control-plane:0.1.0"}
    operator = pods(manifests)["sapwood-operator"]["containers"][0]["args"]
    assert "--engine-image=other.example/engine@sha256:00" in operator
    assert "--engine-cuda-image=registry.example/ml/sapwood/engine-cuda:0.1.0" in operator


@pytest.mark.parametrize("release", ["true", "null", "on", "a", "n" * 53])
def test_a_release_name_that_yaml_reads_as_something_else_stays_a_name(release: str) -> None:
    gateway = of_kind(render(release=release, namespace="123"), "Service")[f"{release}-gateway"]
    assert gateway["spec"]["selector"]["app.kubernetes.io/instance"] == release
    assert gateway["metadata"]["namespace"] == "123"


@pytest.mark.parametrize("release", ["7b", "chat.eu"])
def test_a_release_name_that_cannot_begin_a_services_name_is_refused(release: str) -> None:
    assert f'the release name "{release}" cannot begin the name of a Service' in refusal(release=release)


def test_operator_and_gateway_share_a_secret_that_the_chart_makes_unless_one_is_named() -> None:
    made, named = render(), render({"secret": {"existingSecret": "ours"}})
    secret = base64.b64decode(of_kind(made, "Secret")["sapwood-secret"]["data"]["secret"])
    assert len(secret_of(secret)) == 43
    assert secret != base64.b64decode(of_kind(render(), "Secret")["sapwood-secret"]["data"]["secret"])
    assert not of_kind(named, "Secret")
    for manifests, name in ((made, "sapwood-secret"), (named, "ours")):
        for program in ("operator", "gateway"):
            pod = pods(manifests)[f"sapwood-{program}"]
            assert {"name": "secret", "secret": {"secretName": name, "defaultMode": 0o440}} in pod["volumes"]
            (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "secret"]
            assert f"--secret-file={mount['mountPath']}/secret" in arguments(manifests, program)


def test_a_budget_is_made_where_there_is_more_than_one_replica() -> None:
    budgets = of_kind(render({"operator": {"replicas": 1}, "gateway": {"replicas": 2}}), "PodDisruptionBudget")
    assert set(budgets) == {"sapwood-gateway"}


@pytest.mark.parametrize(("create", "made"), [("Always", 2), ("Auto", 0), ("Never", 0)])
def test_pod_monitors_are_made_where_they_are_forced_or_the_cluster_has_the_kind(create: str, made: int) -> None:
    """Rendered without a cluster: the kind is not there."""
    assert len(of_kind(render({"metrics": {"podMonitor": {"create": create}}}), "PodMonitor")) == made
    rules = of_kind(render({"metrics": {"rules": {"create": create}}}), "PrometheusRule")
    assert set(rules) == ({"sapwood-gateway", "sapwood-operator"} if made else set())


def test_routes_from_the_named_namespaces_may_lead_to_the_gateways_service_and_to_nothing_else() -> None:
    assert not of_kind(render(), "ReferenceGrant")
    grant = of_kind(render(EVERYTHING), "ReferenceGrant")["sapwood-gateway"]
    assert grant["metadata"]["namespace"] == "prod", "beside what it grants"
    assert [(source["kind"], source["namespace"]) for source in grant["spec"]["from"]] == [
        ("HTTPRoute", "team-a"),
        ("HTTPRoute", "123"),
    ]
    assert grant["spec"]["to"] == [{"group": "", "kind": "Service", "name": "sapwood-gateway"}]


def test_a_pod_monitors_port_is_one_of_the_pods() -> None:
    manifests = render(EVERYTHING)
    for name, monitor in of_kind(manifests, "PodMonitor").items():
        ports = {port["name"] for port in pods(manifests)[name]["containers"][0]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_nothing_of_the_chart_stands_in_the_way_of_other_writes_as_webhooks_do(values: dict[str, Any]) -> None:
    manifests = render(values)
    assert not [m["kind"] for m in manifests if "Webhook" in m["kind"] or m["kind"] == "APIService"]
    crds = of_kind(manifests, "CustomResourceDefinition").values()
    assert not [crd["metadata"]["name"] for crd in crds if crd["spec"].get("conversion", {}).get("webhook")]


def test_selectors_match_the_pods_of_their_own_component() -> None:
    manifests = render(EVERYTHING)
    labels = {
        name: deployment["spec"]["template"]["metadata"]["labels"]
        for name, deployment in of_kind(manifests, "Deployment").items()
    }
    services = of_kind(manifests, "Service")
    assert {name: service["spec"]["selector"] for name, service in services.items()} == labels
    for kind, field in (
        ("NetworkPolicy", "podSelector"),
        ("PodDisruptionBudget", "selector"),
        ("PodMonitor", "selector"),
    ):
        found = of_kind(manifests, kind)
        assert {name: manifest["spec"][field]["matchLabels"] for name, manifest in found.items()} == labels


def test_the_notes_say_what_to_do_next() -> None:
    text = notes()
    assert "kind: InferenceService" in text
    assert "http://sapwood-gateway.prod.svc.cluster.local/v1" in text
    assert "helm test sapwood --namespace=prod" in text
    assert "name your Prometheus in metrics.peers" in text
    assert "No other release may serve the same" in text
    assert "Each of the 2 gateway pods counts the quotas of Tenants by itself" in text
    together = {"gateway": {"quotas": {"storeSecret": {"name": "redis"}}}}
    assert "by itself" not in notes(together) + notes({"gateway": {"replicas": 1}})


def test_the_notes_name_a_namespace_that_is_watched() -> None:
    text = notes({"watchNamespaces": ["team-a", "team-b"], "crds": {"install": False}})
    assert "the namespaces team-a, team-b" in text
    assert "namespace: team-a" in text
    assert "The CRDs were left out" in text


def test_the_manifest_in_the_notes_is_one() -> None:
    manifest = yaml.safe_load(notes().split("<<END\n")[1].split("END\n")[0])
    assert manifest["kind"] == "InferenceService"
