"""The objects that a service becomes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support_operator import ALL_APIS, SETTINGS, UID, WITH_SECRET, a_service

from sapwood_contract import routing
from sapwood_contract.routing import ServiceRoute
from sapwood_contract.trust import engine_credential
from sapwood_operator.domain.children.desired import KINDS, OPTIONAL_APIS, desired_children, missing_apis
from sapwood_operator.domain.spec import read
from sapwood_operator.settings import OperatorSettings

EXPOSED: dict[str, Any] = {
    "exposure": {
        "ingress": {"className": "nginx", "host": "chat.example.com", "tls": {"secretName": "chat-tls"}},
        "gateway": {"parentRefs": [{"name": "edge"}], "hostnames": ["chat.example.com", "llm.example.com"]},
    }
}
PORTS = {"http": 8000, "admin": 8001, "kv-events": 8002, "kv-replay": 8003}
Children = dict[tuple[str, str], Mapping[str, Any]]


def children(
    *,
    settings: OperatorSettings = SETTINGS,
    apis: frozenset[tuple[str, str]] = ALL_APIS,
    replicas: int = 2,
    **spec: Any,
) -> Children:
    """Desired objects by kind and name."""
    made = desired_children(read(a_service(**spec)), settings, replicas=replicas, apis=apis)
    return {(child["kind"], child["metadata"]["name"]): child for child in made}


def pod(**rest: Any) -> Any:
    return children(**rest)["Deployment", "chat-engine"]["spec"]["template"]["spec"]


def engine(**rest: Any) -> Any:
    return pod(**rest)["containers"][0]


def test_a_service_becomes_these_objects() -> None:
    assert set(children(apis=frozenset())) == {
        ("ServiceAccount", "chat-engine"),
        ("NetworkPolicy", "chat-engine"),
        ("Service", "chat-engine"),
        ("PodDisruptionBudget", "chat-engine"),
        ("Deployment", "chat-engine"),
        ("ConfigMap", "chat-routing"),
        ("Service", "chat"),
    }


def test_where_the_cluster_has_more_apis_it_becomes_more() -> None:
    more = set(children(**EXPOSED)) - set(children(apis=frozenset(), **EXPOSED))
    assert more == {
        ("PodMonitor", "chat-engine"),
        ("PrometheusRule", "chat-engine"),
        ("Ingress", "chat"),
        ("HTTPRoute", "chat"),
    }
    assert ("PodMonitor", "chat-engine") not in children(observability={"podMonitor": "Disabled"})
    assert ("PrometheusRule", "chat-engine") not in children(observability={"alerts": False})


def test_every_child_is_owned_labelled_and_of_a_kind_that_may_be_deleted_again() -> None:
    for (kind, _), child in children(**EXPOSED).items():
        metadata = child["metadata"]
        assert metadata["namespace"] == "team"
        assert (
            metadata["labels"]
            | {
                "app.kubernetes.io/name": "sapwood",
                "app.kubernetes.io/instance": "chat",
                "app.kubernetes.io/component": "engine",
                "app.kubernetes.io/managed-by": "sapwood-operator",
                "app.kubernetes.io/part-of": "sapwood",
                "serving.sapwood.dev/service": "chat",
            }
            == metadata["labels"]
        )
        (owner,) = metadata["ownerReferences"]
        assert owner == {
            "apiVersion": "serving.sapwood.dev/v1alpha1",
            "kind": "InferenceService",
            "name": "chat",
            "uid": UID,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        assert (child["apiVersion"], kind) in KINDS


def test_optional_kinds_are_a_part_of_all_kinds() -> None:
    assert OPTIONAL_APIS < KINDS


def test_the_pod_passes_the_restricted_pod_security_profile() -> None:
    security, container = pod()["securityContext"], engine()["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == security["runAsGroup"] == 10001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["readOnlyRootFilesystem"] is True
    assert {next(iter(v.keys() - {"name"})) for v in pod()["volumes"]} <= {"emptyDir", "persistentVolumeClaim"}


def test_the_pod_gets_no_api_token() -> None:
    assert pod()["automountServiceAccountToken"] is False
    assert children()["ServiceAccount", "chat-engine"]["automountServiceAccountToken"] is False


def test_a_leaving_replica_has_time_to_be_forgotten_to_drain_and_to_end() -> None:
    rollout = {"drainTimeout": "1m30s"}
    assert "--drain-seconds=90.0" in engine(rollout=rollout)["args"]
    assert engine(rollout=rollout)["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert pod(rollout=rollout)["terminationGracePeriodSeconds"] == 120


def test_a_fraction_of_a_second_of_drain_is_rounded_up() -> None:
    assert pod(rollout={"drainTimeout": "500ms"})["terminationGracePeriodSeconds"] == 31


def test_probes_ask_the_admin_port() -> None:
    container = engine()
    assert container["startupProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "admin"}
    assert {p["name"]: p["containerPort"] for p in container["ports"]} == PORTS


def test_ports_for_events_of_blocks_are_open_to_the_gateway_where_prefixes_decide_and_nowhere_else() -> None:
    made, without = children(), children(routing={"policy": "LeastLoad"})
    _, blocks = made["NetworkPolicy", "chat-engine"]["spec"]["ingress"]
    assert [p["port"] for p in blocks["ports"]] == [8002, 8003]
    (gateway,) = blocks["from"]
    assert gateway["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert len(without["NetworkPolicy", "chat-engine"]["spec"]["ingress"]) == 1
    assert [p["port"] for p in without["Service", "chat-engine"]["spec"]["ports"]] == [8000, 8001]
    assert len(engine(routing={"policy": "LeastLoad"})["ports"]) == 2


@pytest.mark.parametrize(
    ("fields", "image"),
    [
        ({}, "sapwood/engine:1"),
        ({"engine": {"device": "CUDA"}}, "sapwood/engine-cuda:1"),
        ({"resources": {"limits": {"nvidia.com/gpu": "1"}}}, "sapwood/engine-cuda:1"),
        ({"engine": {"image": "mine:2", "device": "CUDA"}}, "mine:2"),
    ],
    ids=["CPU", "CUDA", "Auto with a GPU", "named"],
)
def test_the_image_is_the_one_for_the_device_unless_the_spec_names_one(fields: dict[str, Any], image: str) -> None:
    assert engine(**fields)["image"] == image


def test_everything_that_the_engine_writes_has_a_volume() -> None:
    mounts = {m["mountPath"]: m["name"] for m in engine()["volumeMounts"]}
    assert mounts == {"/tmp": "tmp", "/dev/shm": "shm", "/cache": "cache"}
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod()["volumes"]
    variables = {v["name"]: v.get("value") for v in engine()["env"]}
    assert variables == {"HOME": "/tmp", "XDG_CACHE_HOME": "/cache", "HF_HOME": "/cache/huggingface"}


@pytest.mark.parametrize(
    ("cache", "volume"),
    [
        ({"persistentVolumeClaim": {"claimName": "models"}}, {"persistentVolumeClaim": {"claimName": "models"}}),
        ({"nodePath": "/var/models"}, {"hostPath": {"path": "/var/models", "type": "Directory"}}),
    ],
    ids=["claim", "node"],
)
def test_the_cache_may_outlive_the_pod(cache: dict[str, Any], volume: dict[str, Any]) -> None:
    made = pod(model={"source": {"huggingFace": {"repo": "o/n"}}, "cache": cache})
    assert {"name": "cache", **volume} in made["volumes"]


def test_weights_in_a_claim_are_mounted_for_reading_alone() -> None:
    model = {"source": {"pvc": {"claimName": "weights", "path": "llama"}}}
    claim = {"claimName": "weights", "readOnly": True}
    assert {"name": "models", "persistentVolumeClaim": claim} in pod(model=model)["volumes"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in engine(model=model)["volumeMounts"]
    assert "--model=/models/llama" in engine(model=model)["args"]


def test_the_token_reaches_the_engine_by_reference() -> None:
    model = {"source": {"huggingFace": {"repo": "o/n"}}, "tokenSecretRef": {"name": "hub", "key": "read"}}
    reference = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "read"}}}
    assert reference in engine(model=model)["env"]


def test_placement_is_the_pods() -> None:
    made = pod(
        placement={
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "topologySpread": [{"topologyKey": "kubernetes.io/hostname", "maxSkew": 2}],
            "priorityClassName": "high",
        }
    )
    assert made["nodeSelector"] == {"zone": "a"}
    assert made["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert made["priorityClassName"] == "high"
    (spread,) = made["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["maxSkew"]) == ("kubernetes.io/hostname", 2)
    assert spread["labelSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "chat"


def test_resources_and_pull_secrets_are_the_pods() -> None:
    resources = {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}
    settings = replace(SETTINGS, image_pull_secrets=("registry",))
    assert engine(resources=resources)["resources"] == resources
    assert pod(settings=settings)["imagePullSecrets"] == [{"name": "registry"}]


def test_the_pod_template_is_laid_over_the_pod() -> None:
    patch = {"spec": {"runtimeClassName": "nvidia", "containers": [{"name": "engine", "tty": True}]}}
    made = pod(podTemplate=patch)
    assert made["runtimeClassName"] == "nvidia"
    assert made["containers"][0]["tty"] is True
    assert made["containers"][0]["image"] == "sapwood/engine:1"


def test_the_deployment_rolls_as_the_spec_says_and_always_names_its_replicas() -> None:
    made = children(replicas=3, rollout={"maxSurge": 0, "maxUnavailable": "50%"})["Deployment", "chat-engine"]["spec"]
    assert made["replicas"] == 3
    assert made["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": "50%"}
    assert made["selector"]["matchLabels"].items() <= made["template"]["metadata"]["labels"].items()


def test_the_headless_service_lists_the_replicas() -> None:
    made = children()["Service", "chat-engine"]["spec"]
    assert made["clusterIP"] == "None"
    assert {p["name"]: p["port"] for p in made["ports"]} == PORTS
    assert all(p["targetPort"] == p["name"] for p in made["ports"])


def test_the_address_is_a_name_for_the_gateway_in_another_namespace() -> None:
    made = children()["Service", "chat"]["spec"]
    assert made["type"] == "ExternalName"
    assert made["externalName"] == "sapwood-gateway.sapwood-system.svc.cluster.local"


def test_the_address_selects_the_gateways_pods_in_its_own_namespace() -> None:
    made = children(settings=replace(SETTINGS, gateway_namespace="team"))["Service", "chat"]["spec"]
    assert made["type"] == "ClusterIP"
    assert made["selector"] == {
        "app.kubernetes.io/name": "sapwood",
        "app.kubernetes.io/component": "gateway",
        "app.kubernetes.io/instance": "sapwood",
    }
    assert [(p["port"], p["targetPort"]) for p in made["ports"]] == [(80, "http")]


def test_the_gateway_reads_the_route_that_the_operator_writes() -> None:
    made = children(routing={"policy": "RoundRobin"}, **EXPOSED)["ConfigMap", "chat-routing"]
    assert made["metadata"]["labels"]["serving.sapwood.dev/routing"] == "true"
    assert routing.from_json(made["data"]["service.json"]) == ServiceRoute(
        namespace="team",
        service="chat",
        models=("chat",),
        engine_service="chat-engine",
        policy="RoundRobin",
        hosts=("chat.example.com", "llm.example.com"),
    )


KEYS: dict[str, Any] = {"tenancy": {"authentication": "ApiKey"}}


def test_the_gateway_is_told_how_to_treat_requests() -> None:
    made = children(
        settings=WITH_SECRET,
        routing={"hotPrefixReplicas": {"min": 2, "max": 3}, "queue": {"maxRequests": 7, "maxWait": "5s"}},
        tenancy={"authentication": "ApiKey", "cacheSharing": "Group"},
    )
    route = routing.from_json(made["ConfigMap", "chat-routing"]["data"]["service.json"])
    assert (route.policy, route.hot_prefix_replicas) == ("PrefixAffinity", (2, 3))
    assert (route.queue_max_requests, route.queue_max_wait_seconds) == (7, 5)
    assert (route.authentication, route.cache_sharing) == ("ApiKey", "Group")


def credential(made: Children) -> Mapping[str, Any]:
    (found,) = (child for (kind, _), child in made.items() if kind == "Secret")
    return found


def test_engines_of_a_service_with_keys_get_the_credential_that_the_gateway_makes_too() -> None:
    secret = credential(children(settings=WITH_SECRET, **KEYS))
    value = base64.b64decode(secret["data"]["gateway-credential"]).decode()
    assert value == engine_credential(WITH_SECRET.secret, "team", "chat")
    mounted = {"secretName": secret["metadata"]["name"], "defaultMode": 0o440}
    assert {"name": "credential", "secret": mounted} in pod(settings=WITH_SECRET, **KEYS)["volumes"]
    mount = {"name": "credential", "mountPath": "/etc/sapwood", "readOnly": True}
    assert mount in engine(settings=WITH_SECRET, **KEYS)["volumeMounts"]


def test_another_secret_of_the_installation_is_another_credential_under_another_name() -> None:
    first, second = (
        credential(children(settings=replace(SETTINGS, secret=secret), **KEYS)) for secret in (b"a" * 16, b"b" * 16)
    )
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert first["data"] != second["data"]
    assert first["immutable"] is True
    name = "a" * 40
    longest = desired_children(read(a_service(name, **KEYS)), WITH_SECRET, replicas=1, apis=frozenset())
    assert max(len(child["metadata"]["name"]) for child in longest) <= 63


def test_without_keys_or_without_a_secret_there_is_no_credential() -> None:
    for made in (children(settings=WITH_SECRET), children(**KEYS)):
        assert "Secret" not in {kind for kind, _ in made}


def test_a_service_that_asks_for_keys_gets_no_address_while_engines_could_not_know_the_gateway() -> None:
    made = children(**KEYS, **EXPOSED)
    assert ("Deployment", "chat-engine") in made
    assert ("Service", "chat") in children(settings=WITH_SECRET, **KEYS, **EXPOSED)
    assert not {("ConfigMap", "chat-routing"), ("Service", "chat"), ("Ingress", "chat"), ("HTTPRoute", "chat")} & set(
        made
    )


def test_the_budget_lets_one_replica_go_unless_the_spec_says_how_many_stay() -> None:
    assert children()["PodDisruptionBudget", "chat-engine"]["spec"]["maxUnavailable"] == 1
    made = children(disruption={"minAvailable": "50%"})["PodDisruptionBudget", "chat-engine"]["spec"]
    assert made["minAvailable"] == "50%"
    assert "maxUnavailable" not in made


def test_only_gateway_operator_and_metrics_peers_reach_an_engine() -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"team": "metrics"}}}
    settings = replace(SETTINGS, metrics_peers=(prometheus,))
    made = children(settings=settings)["NetworkPolicy", "chat-engine"]["spec"]
    programs, _, metrics = made["ingress"]
    assert made["policyTypes"] == ["Ingress"]
    assert [p["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for p in programs["from"]] == [
        "gateway",
        "operator",
    ]
    assert [p["port"] for p in programs["ports"]] == [8000, 8001]
    assert metrics["from"] == [prometheus]
    assert [p["port"] for p in metrics["ports"]] == [8001]


def test_an_empty_list_of_metrics_peers_lets_nobody_in() -> None:
    assert len(children()["NetworkPolicy", "chat-engine"]["spec"]["ingress"]) == 2


def test_the_ingress_leads_to_the_address() -> None:
    made = children(**EXPOSED)["Ingress", "chat"]["spec"]
    assert made["ingressClassName"] == "nginx"
    assert made["tls"] == [{"hosts": ["chat.example.com"], "secretName": "chat-tls"}]
    (rule,) = made["rules"]
    assert rule["host"] == "chat.example.com"
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "chat", "port": {"name": "http"}}


def test_prometheus_knows_the_service_of_each_pod_that_it_scrapes() -> None:
    """By the name that Prometheus makes of a pod's label."""
    monitor = children()["PodMonitor", "chat-engine"]["spec"]
    template = children()["Deployment", "chat-engine"]["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("admin", "/metrics")
    assert template["metadata"]["labels"]["serving.sapwood.dev/service"] == "chat"
    source = "__meta_kubernetes_pod_label_serving_sapwood_dev_service"
    assert endpoint["relabelings"] == [{"sourceLabels": [source], "targetLabel": "inference_service"}]


def test_an_autoscaler_has_samples_that_are_young_enough_and_else_prometheus_says_how_often() -> None:
    def interval(**spec: Any) -> str | None:
        (endpoint,) = children(**spec)["PodMonitor", "chat-engine"]["spec"]["podMetricsEndpoints"]
        found: str | None = endpoint.get("interval")
        return found

    assert interval() is None
    assert interval(autoscaling={"maxReplicas": 3}) == "15s"
    assert interval(autoscaling={"policyRef": {"name": "shared"}}) == "15s"


def rules(**rest: Any) -> list[Mapping[str, Any]]:
    groups = children(**rest)["PrometheusRule", "chat-engine"]["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_rules_are_about_the_service_and_alerts_link_to_the_runbooks() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert alerts
    assert all('namespace="team",inference_service="chat"' in rule["expr"] for rule in rules() if "record" in rule)
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"{SETTINGS.runbook_url}#{alert['alert'].lower()}"


def test_alerts_hold_a_service_to_the_time_to_first_token_that_it_promises() -> None:
    promised = {"autoscaling": {"maxReplicas": 2, "slo": {"ttftP90": "500ms"}}}
    assert any('le="0.5"' in rule["expr"] for rule in rules(**promised))
    assert any('le="2.0"' in rule["expr"] for rule in rules())


def test_what_a_prometheus_selects_by_stands_beside_our_own_labels() -> None:
    settings = replace(SETTINGS, metrics_labels=(("release", "prometheus"), ("app.kubernetes.io/part-of", "else")))
    for kind in ("PodMonitor", "PrometheusRule"):
        labels = children(settings=settings)[kind, "chat-engine"]["metadata"]["labels"]
        assert (labels["release"], labels["app.kubernetes.io/part-of"]) == ("prometheus", "sapwood")
    assert "release" not in children(settings=settings)["Deployment", "chat-engine"]["metadata"]["labels"]


def test_the_route_leads_to_the_gateways_own_service() -> None:
    elsewhere = children(**EXPOSED)["HTTPRoute", "chat"]["spec"]["rules"][0]["backendRefs"]
    assert elsewhere == [{"name": "sapwood-gateway", "namespace": "sapwood-system", "port": 80}]
    here = children(settings=replace(SETTINGS, gateway_namespace="team"), **EXPOSED)["HTTPRoute", "chat"]["spec"]
    assert here["rules"][0]["backendRefs"] == [{"name": "chat", "port": 80}]
    assert here["parentRefs"] == [{"name": "edge"}]
    assert here["hostnames"] == ["chat.example.com", "llm.example.com"]


def test_what_the_spec_asks_for_by_name_and_the_cluster_lacks_is_told() -> None:
    spec = read(a_service(observability={"podMonitor": "Enabled", "alerts": True}, **EXPOSED))
    assert [field for field, _, _ in missing_apis(spec, frozenset())] == [
        "exposure.ingress",
        "exposure.gateway",
        "observability.podMonitor",
        "observability.alerts",
    ]
    assert missing_apis(spec, ALL_APIS) == ()
    assert missing_apis(read(a_service()), frozenset()) == ()
