"""What the operator is told once, at its start; every reconcile decides under the same settings.

A value that exists is a value that can be used: anything else raises `SettingsError` naming the option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sapwood_operator.errors import SettingsError

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")
_PAGE = re.compile(r"https?://[-!%&'()*+,./0-9:;=?@A-Z_a-z~]+")
"""No fragment, for alerts have their own, and no braces, which Prometheus would read as a template."""
_PROMETHEUS = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[-.0-9A-Za-z]+)(:[0-9]{1,5})?(/[-.0-9A-Za-z_~/]*)?")
"""No user or password, which would stand in the pod's argv, and no query."""
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")


@dataclass(frozen=True, slots=True)
class EngineSource:
    """What replicas do is asked of each engine."""


@dataclass(frozen=True, slots=True)
class PrometheusSource:
    """What replicas do is asked of a Prometheus that scrapes them, every 30 seconds or more often."""

    url: str
    """What comes before ``/api/v1``."""

    def __post_init__(self) -> None:
        if not _PROMETHEUS.fullmatch(self.url):
            shown = re.sub(r"[^/]*@", "***@", self.url)
            fix = "give an address such as http://prometheus:9090, without user, password and query"
            raise SettingsError("--prometheus-url", shown, fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Where the operator looks, what it makes pods of, and where the gateway is."""

    operator_namespace: str
    """Where the operator itself runs: its Lease is there, and engines let its pods in from there."""
    gateway_service: str
    """Service of the gateway, port 80."""
    gateway_namespace: str
    gateway_instance: str
    """Value of ``app.kubernetes.io/instance`` on the gateway's pods: the name of the chart's release."""
    engine_image: str
    """Image of engines that compute on CPUs."""
    engine_cuda_image: str
    """Image of engines that compute on NVIDIA GPUs."""
    runbook_url: str
    """Page with a section for each alert, to which alerts link."""
    secret: bytes = field(default=b"", repr=False)
    """Of the installation; the gateway has it too. Empty: services that ask for API keys get no address."""
    namespaces: tuple[str, ...] = ()
    """Namespaces that are watched; none named: all of them."""
    image_pull_policy: str = "IfNotPresent"
    """As in Kubernetes. Tags of ours do not move, so a node need not ask a registry twice."""
    image_pull_secrets: tuple[str, ...] = ()
    """Secrets, in the namespace of each InferenceService, that pull the images."""
    cluster_domain: str = "cluster.local"
    """What the cluster's DNS ends its names with."""
    metrics_peers: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    """NetworkPolicyPeers that may read an engine's admin port: where Prometheus runs."""
    metrics_labels: tuple[tuple[str, str], ...] = ()
    """On PodMonitors and PrometheusRules, by which a Prometheus selects them."""
    resync_seconds: float = 300.0
    """How long a service may go without being looked at, should every event about it be lost."""
    gateway_admin_port: int = 8081
    """Of the gateway's pods: what they have to do is asked there."""
    signals: EngineSource | PrometheusSource = EngineSource()
    """Engines need no other program; a Prometheus that scrapes them already spares them a second scraper."""
    retry_seconds: float = 20.0
    """When to look again at what the API server refused: a quota is raised without an event about the service."""
    progress_deadline_seconds: int = 1200
    """After which a rollout without progress is called stuck. Loading a large model is no progress in this sense."""

    def __post_init__(self) -> None:
        for name in ("operator_namespace", "gateway_service", "gateway_namespace", "gateway_instance"):
            _check(name, getattr(self, name), _LABEL, "give a name of lower case letters, digits and '-'")
        for namespace in self.namespaces:
            _check("namespace", namespace, _LABEL, "give names of namespaces, or none for all")
        _check("cluster_domain", self.cluster_domain, _DOMAIN, "give a domain such as cluster.local")
        _check(
            "runbook_url", self.runbook_url, _PAGE, "give an address such as https://a.example/runbooks, without '#'"
        )
        if not 1 <= self.gateway_admin_port <= 65_535:
            raise SettingsError("--gateway-admin-port", self.gateway_admin_port, "take 1 to 65535")
        for key, value in self.metrics_labels:
            _check("metrics_label", key, _LABEL_KEY, "give KEY=VALUE, a label as Kubernetes takes it")
            _check("metrics_label", value, _LABEL_VALUE, "give KEY=VALUE, a label as Kubernetes takes it")
        for name in ("engine_image", "engine_cuda_image"):
            if not getattr(self, name):
                raise SettingsError(_option(name), getattr(self, name), "name an image")
        if self.image_pull_policy not in _PULL_POLICIES:
            raise SettingsError(
                "--image-pull-policy", self.image_pull_policy, f"take one of {', '.join(_PULL_POLICIES)}"
            )
        for name in ("resync_seconds", "retry_seconds", "progress_deadline_seconds"):
            if not 1 <= getattr(self, name) <= 86_400:
                raise SettingsError(_option(name), getattr(self, name), "take 1 to 86400 seconds")


def _check(name: str, value: str, pattern: re.Pattern[str], fix: str) -> None:
    if not pattern.fullmatch(value):
        raise SettingsError(_option(name), value, fix)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
