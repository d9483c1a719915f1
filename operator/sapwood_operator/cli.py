"""``sapwood operator``: options into settings, and the program started with them.

The only module that reads argv. Exit codes: 0 after SIGTERM or SIGINT; 1 when leadership was lost or something that is
needed could not be had; 2 for options that cannot be used; 128 + n when a second signal n ended it at once.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sapwood_contract.trust import secret_of
from sapwood_operator.adapters.access import find_access
from sapwood_operator.adapters.logs import configure_logging
from sapwood_operator.adapters.runbooks import read_runbooks
from sapwood_operator.errors import OperatorError, SettingsError
from sapwood_operator.handlers.leader import WorkSettings
from sapwood_operator.handlers.program import EXIT_FAILED, ProcessSettings, run
from sapwood_operator.settings import EngineSource, OperatorSettings, PrometheusSource

EXIT_USAGE = 2
_MOST_WORKERS = 64
_ENGINES, _PROMETHEUS = "engines", "prometheus"
N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that argv says."""

    settings: OperatorSettings
    work: WorkSettings
    process: ProcessSettings
    secret_file: str | None
    kubeconfig: str | None
    log_level: str


def main(argv: Sequence[str]) -> int:
    """Run the operator; return the exit code."""
    try:
        options = read_options(argv)
        configure_logging(options.log_level)
        settings = dataclasses.replace(options.settings, secret=_read_secret(options.secret_file))
        access = find_access(options.kubeconfig)
        runbooks = read_runbooks()
    except SettingsError as error:
        sys.stderr.write(f"sapwood operator: {error}\n")
        return EXIT_USAGE
    except OperatorError as error:
        sys.stderr.write(f"sapwood operator: {error}\n")
        return EXIT_FAILED
    return asyncio.run(run(access, settings, options.work, options.process, runbooks=runbooks))


def read_options(argv: Sequence[str]) -> Options:
    """Read argv. What argparse refuses ends the program with 2; `SettingsError` tells the rest."""
    given = vars(_parser().parse_args(list(argv)))
    identity = given["identity"] or f"{socket.gethostname()}-{secrets.token_hex(4)}"
    return Options(
        settings=OperatorSettings(
            operator_namespace=given["operator_namespace"],
            gateway_service=given["gateway_service"],
            gateway_namespace=given["gateway_namespace"] or given["operator_namespace"],
            gateway_instance=given["gateway_instance"],
            gateway_admin_port=given["gateway_admin_port"],
            engine_image=given["engine_image"],
            engine_cuda_image=given["engine_cuda_image"] or given["engine_image"],
            namespaces=tuple(given["namespace"]),
            image_pull_policy=given["image_pull_policy"],
            image_pull_secrets=tuple(given["image_pull_secret"]),
            cluster_domain=given["cluster_domain"],
            metrics_peers=tuple(map(_peer, given["metrics_peer"])),
            metrics_labels=tuple(map(_label, given["metrics_label"])),
            runbook_url=given["runbook_url"] or _own_runbooks(given["operator_namespace"], given["cluster_domain"]),
            signals=_signals(given["signals"], given["prometheus_url"]),
            resync_seconds=given["resync_seconds"],
            retry_seconds=given["retry_seconds"],
            progress_deadline_seconds=given["progress_deadline_seconds"],
        ),
        work=WorkSettings(
            num_workers=_within("--workers", given["workers"], 1, _MOST_WORKERS),
            request_timeout_seconds=_within("--request-timeout-seconds", given["request_timeout_seconds"], 0.1, 300),
            discovery_seconds=_within("--discovery-seconds", given["discovery_seconds"], 0.1, 86_400),
        ),
        process=ProcessSettings(
            identity=identity,
            lease_name=given["lease_name"],
            lease_seconds=_within("--lease-seconds", given["lease_seconds"], 1, 3600),
            health_host=given["health_host"],
            health_port=_within("--health-port", given["health_port"], 0, 65535),
        ),
        secret_file=given["secret_file"],
        kubeconfig=given["kubeconfig"],
        log_level=given["log_level"],
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sapwood operator", allow_abbrev=False, description="Reconcile InferenceServices in a Kubernetes cluster."
    )

    def option(name: str, help_: str, **kwargs: Any) -> None:
        default = kwargs.get("default")
        parser.add_argument(name, help=f"{help_} (default: {default})" if default else help_, **kwargs)

    option("--namespace", "watch this namespace; may be repeated; none given: all", action="append", default=[])
    option("--operator-namespace", "namespace that the operator runs in; its Lease is there", required=True)
    option("--gateway-service", "name of the gateway's Service", required=True)
    option("--gateway-namespace", "namespace of the gateway's Service; default: --operator-namespace")
    option("--gateway-instance", "app.kubernetes.io/instance of the gateway's pods", required=True)
    option("--gateway-admin-port", "port of the gateway's pods for probes and metrics", type=int, default=8081)
    option("--engine-image", "image of engines that compute on CPUs", required=True)
    option("--engine-cuda-image", "image of engines that compute on NVIDIA GPUs; default: --engine-image")
    option(
        "--secret-file",
        "file with the secret that operator and gateways share; none given: services that ask for API keys get no "
        "address",
    )
    option("--image-pull-policy", "pull policy of engines", default="IfNotPresent")
    option("--image-pull-secret", "Secret that pulls the images; may be repeated", action="append", default=[])
    option("--cluster-domain", "what names of the cluster's DNS end with", default="cluster.local")
    option(
        "--metrics-peer",
        "NetworkPolicyPeer, as JSON, that may read an engine's metrics; may be repeated",
        action="append",
        default=[],
    )
    option(
        "--metrics-label",
        "KEY=VALUE, a label on PodMonitors and PrometheusRules by which a Prometheus selects them; may be repeated",
        action="append",
        default=[],
    )
    option(
        "--runbook-url",
        "page with a section for each alert, to which alerts link; default: this operator's own, by the Service "
        "sapwood-operator of --operator-namespace",
    )
    option(
        "--signals",
        "who is asked what replicas do, for autoscaling: the engines themselves, or a Prometheus that scrapes them",
        choices=(_ENGINES, _PROMETHEUS),
        default=_ENGINES,
    )
    option("--prometheus-url", "address of its API, what comes before /api/v1; with --signals=prometheus")
    option("--resync-seconds", "look at every service so often, events or not", type=float, default=300.0)
    option("--retry-seconds", "ask again so often for what the API server refuses", type=float, default=20.0)
    option("--progress-deadline-seconds", "a rollout without progress for so long is stuck", type=int, default=1200)
    option("--identity", "name of this operator in the Lease and in Events; default: host name and a random part")
    option("--lease-name", "name of the Lease", default="sapwood-operator")
    option("--lease-seconds", "how soon another operator takes over", type=int, default=15)
    option("--health-host", "address of /healthz, /readyz, /metrics and /runbooks", default="0.0.0.0")
    option("--health-port", "port of the same; 0 takes a free one", type=int, default=8080)
    option("--workers", "services reconciled at once", type=int, default=4)
    option("--request-timeout-seconds", "longest wait for an answer of the API server", type=float, default=10.0)
    option("--discovery-seconds", "look for optional APIs so often", type=float, default=30.0)
    option("--kubeconfig", "file with the cluster's address; default: the pod's own access, else KUBECONFIG")
    option("--log-level", "least severe log line", choices=("debug", "info", "warning", "error"), default="info")
    return parser


def _within(option: str, value: N, least: float, most: float) -> N:
    if not least <= value <= most:
        raise SettingsError(option, value, f"take {least:g} to {most:g}")
    return value


def _read_secret(path: str | None) -> bytes:
    if path is None:
        return b""
    try:
        return secret_of(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError("--secret-file", path, str(error)) from error


def _signals(source: str, prometheus_url: str | None) -> EngineSource | PrometheusSource:
    if source == _PROMETHEUS:
        return PrometheusSource(prometheus_url or "")
    if prometheus_url is not None:
        raise SettingsError("--prometheus-url", prometheus_url, "it is asked with --signals=prometheus alone: add that")
    return EngineSource()


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise SettingsError("--metrics-label", text, "give KEY=VALUE")
    return key, value


def _own_runbooks(namespace: str, cluster_domain: str) -> str:
    return f"http://sapwood-operator.{namespace}.svc.{cluster_domain}/runbooks"


def _peer(text: str) -> dict[str, Any]:
    try:
        peer = json.loads(text)
    except ValueError as error:
        raise SettingsError("--metrics-peer", text, f"it is not JSON ({error})") from error
    if not isinstance(peer, dict):
        raise SettingsError("--metrics-peer", text, "give a NetworkPolicyPeer object")
    return peer
