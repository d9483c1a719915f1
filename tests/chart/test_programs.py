"""The programs take the arguments that the chart starts them with."""

from __future__ import annotations

from typing import Any

from support_chart import QUOTA_STORE, arguments, pods, refusal, render

from sapwood_gateway.core.routes import ServiceKey
from sapwood_gateway.shell.options import parse
from sapwood_gateway.shell.reading_process import ReadingSettings
from sapwood_operator.cli import Options, read_options
from sapwood_operator.settings import EngineSource, PrometheusSource


def operator(values: dict[str, Any]) -> Options:
    return read_options(arguments(render(values), "operator"))


def test_the_operator_is_told_where_the_gateway_is_and_which_engines_to_start() -> None:
    found = operator({}).settings
    assert (found.gateway_service, found.gateway_namespace, found.gateway_instance) == (
        "sapwood-gateway",
        "prod",
        "sapwood",
    )
    assert (found.engine_image, found.engine_cuda_image) == ("sapwood/engine:0.1.0", "sapwood/engine-cuda:0.1.0")
    assert found.operator_namespace == "prod"
    assert found.namespaces == ()


def test_the_operator_is_told_what_the_values_say() -> None:
    peer = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    values = {
        "watchNamespaces": ["team-a", "team-b"],
        "clusterDomain": "example.test",
        "images": {"pullPolicy": "Always", "pullSecrets": ["registry"]},
        "metrics": {"peers": [peer]},
        "operator": {"resyncSeconds": 60, "progressDeadlineSeconds": 3600, "logLevel": "debug"},
    }
    options = operator(values)
    found = options.settings
    assert found.namespaces == ("team-a", "team-b")
    assert found.cluster_domain == "example.test"
    assert (found.image_pull_policy, found.image_pull_secrets) == ("Always", ("registry",))
    assert found.metrics_peers == (peer,)
    assert (found.resync_seconds, found.progress_deadline_seconds) == (60, 3600)
    assert options.log_level == "debug"


def test_the_operator_asks_engines_or_the_prometheus_that_is_named() -> None:
    assert operator({}).settings.signals == EngineSource()
    signals = {"source": "Prometheus", "prometheusUrl": "http://prometheus:9090"}
    found = operator({"operator": {"signals": signals}}).settings.signals
    assert found == PrometheusSource("http://prometheus:9090")
    message = refusal({"operator": {"signals": {"source": "Prometheus"}}})
    assert "operator.signals.prometheusUrl: source Prometheus needs its address" in message


def test_the_operator_asks_gateways_at_the_port_that_they_have() -> None:
    manifests = render()
    (container,) = pods(manifests)["sapwood-gateway"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert read_options(arguments(manifests, "operator")).settings.gateway_admin_port == ports["admin"]


def test_the_operators_health_port_and_lease_are_the_ones_that_the_chart_expects() -> None:
    manifests = render()
    process = read_options(arguments(manifests, "operator")).process
    (container,) = pods(manifests)["sapwood-operator"]["containers"]
    assert container["ports"] == [{"name": "metrics", "containerPort": process.health_port}]
    (leader,) = [m for m in manifests if m["kind"] == "Role" and m["metadata"]["name"] == "sapwood-operator-leader"]
    assert leader["rules"][1]["resourceNames"] == [process.lease_name]
    assert process.identity == "$(POD_NAME)"
    assert "POD_NAME" in {variable["name"] for variable in container["env"]}


def test_two_releases_in_one_namespace_each_have_a_lease_of_their_own() -> None:
    manifests = render(release="other")
    _, *options = pods(manifests)["other-operator"]["containers"][0]["args"]
    assert read_options(options).process.lease_name == "other-operator"
    (leader,) = [m for m in manifests if m["kind"] == "Role" and m["metadata"]["name"] == "other-operator-leader"]
    assert leader["rules"][1]["resourceNames"] == ["other-operator"]


def test_the_gateways_ports_are_those_of_its_container() -> None:
    manifests = render({"watchNamespaces": ["team-a"]})
    options = parse(arguments(manifests, "gateway"))
    (container,) = pods(manifests)["sapwood-gateway"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": options.port, "admin": options.admin_port}
    assert (options.host, options.admin_host) == ("0.0.0.0", "0.0.0.0")
    assert options.namespaces == ("team-a",)


def test_the_gateway_knows_the_service_that_leads_to_it() -> None:
    manifests = render()
    (service,) = [m for m in manifests if m["kind"] == "Service" and m["metadata"]["name"].endswith("-gateway")]
    metadata = service["metadata"]
    assert parse(arguments(manifests, "gateway")).service == ServiceKey(metadata["namespace"], metadata["name"])


def test_gateways_count_quotas_in_the_store_that_a_secret_names_and_no_manifest_shows_its_address() -> None:
    quotas = {"storeSecret": {"name": "redis", "key": "address"}, "storeFailure": "Closed"}
    manifests = render({"gateway": {"quotas": quotas, "extraEnv": [{"name": "A", "value": "b"}]}})
    options = parse(arguments(manifests, "gateway"))
    assert (options.quota_store_url, options.quota_store_failure) == (QUOTA_STORE, "closed")
    (container,) = pods(manifests)["sapwood-gateway"]["containers"]
    source = {"secretKeyRef": {"name": "redis", "key": "address"}}
    assert container["env"] == [{"name": "QUOTA_STORE", "valueFrom": source}, {"name": "A", "value": "b"}]
    assert parse(arguments(render(), "gateway")).quota_store_url is None
    assert "env" not in pods(render())["sapwood-gateway"]["containers"][0]


def test_alerts_link_to_a_page_that_the_operator_serves_behind_its_service() -> None:
    manifests = render({"clusterDomain": "example.test"}, release="other")
    options = read_options(arguments(manifests, "operator", release="other"))
    assert options.settings.runbook_url == "http://other-operator.prod.svc.example.test/runbooks"
    (service,) = [m for m in manifests if m["kind"] == "Service" and m["metadata"]["name"] == "other-operator"]
    (port,) = service["spec"]["ports"]
    (container,) = pods(manifests)["other-operator"]["containers"]
    assert (port["port"], options.process.health_port) == (80, 8080)
    assert port["targetPort"] in {each["name"] for each in container["ports"]}


def test_services_are_watched_as_the_charts_own_programs_are() -> None:
    metrics = {"labels": {"release": "prometheus"}, "rules": {"runbookUrl": "https://example.com/runbooks"}}
    found = operator({"metrics": metrics}).settings
    assert found.metrics_labels == (("release", "prometheus"),)
    assert found.runbook_url == "https://example.com/runbooks"


def test_the_gateway_traces_where_it_is_told_to() -> None:
    assert parse(arguments(render(), "gateway")).otlp_endpoint is None
    tracing = {"endpoint": "http://collector.tracing.svc:4318", "samplingRatio": 0.5}
    options = parse(arguments(render({"gateway": {"tracing": tracing}}), "gateway"))
    assert (options.otlp_endpoint, options.trace_sampling_ratio) == ("http://collector.tracing.svc:4318", 0.5)


def test_the_console_of_a_cluster_is_off_until_somebody_wants_it_and_takes_a_key_from_a_secret() -> None:
    assert parse(arguments(render(), "gateway")).console == "auto", "which is off where not only this machine asks"
    manifests = render({"gateway": {"console": True, "adminKeySecret": {"name": "admin", "key": "value"}}})
    options = parse(arguments(manifests, "gateway"))
    pod = pods(manifests)["sapwood-gateway"]
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "admin-key"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "admin-key"]
    assert (options.console, str(options.admin_key_file)) == ("on", f"{mount['mountPath']}/key")
    assert volume["secret"]["items"] == [{"key": "value", "path": "key"}]
    assert volume["secret"]["secretName"] == "admin"
    assert options.operator_url == "http://sapwood-operator.prod.svc"


def test_the_gateways_memory_is_enough_for_the_requests_that_it_holds_at_most() -> None:
    manifests = render()
    (container,) = pods(manifests)["sapwood-gateway"]["containers"]
    assert container["resources"]["limits"]["memory"] == "1536Mi"
    reading = ReadingSettings()
    held_bytes = 3 * parse(arguments(manifests, "gateway")).max_held_bytes
    assert held_bytes + reading.memory_bytes + reading.bundle_bytes <= 1536 * 2**20
