"""Settings that exist are settings that can be used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support_operator import SETTINGS

from sapwood_operator.errors import SettingsError
from sapwood_operator.settings import PrometheusSource


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operator_namespace": ""}, "--operator-namespace: '' cannot be used: give a name"),
        ({"gateway_service": "Gate_way"}, "--gateway-service: 'Gate_way'"),
        ({"gateway_namespace": "a.b"}, "--gateway-namespace: 'a.b'"),
        ({"gateway_instance": "-"}, "--gateway-instance: '-'"),
        ({"namespaces": ("team", "")}, "--namespace: '' .* none for all"),
        ({"cluster_domain": "."}, "--cluster-domain: '.'"),
        ({"runbook_url": "runbooks.md"}, "--runbook-url: 'runbooks.md' .* give an address"),
        ({"runbook_url": "http://host/#top"}, "--runbook-url: 'http://host/#top' .* without '#'"),
        ({"runbook_url": "http://host/{{ $labels.pod }}"}, "--runbook-url: 'http://host/{{"),
        ({"metrics_labels": (("", "a"),)}, "--metrics-label: '' .* KEY=VALUE"),
        ({"metrics_labels": (("release", "a b"),)}, "--metrics-label: 'a b' .* KEY=VALUE"),
        ({"engine_image": ""}, "--engine-image: '' .* name an image"),
        ({"engine_cuda_image": ""}, "--engine-cuda-image: '' .* name an image"),
        ({"image_pull_policy": "Sometimes"}, "--image-pull-policy: 'Sometimes' .* Always"),
        ({"resync_seconds": 0}, "--resync-seconds: 0 .* 1 to 86400"),
        ({"retry_seconds": float("nan")}, "--retry-seconds: nan .* 1 to 86400"),
        ({"progress_deadline_seconds": 100_000}, "--progress-deadline-seconds: 100000 .* 1 to 86400"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_setting_that_cannot_be_used_is_refused_by_its_option(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        replace(SETTINGS, **change)


@pytest.mark.parametrize(
    "url",
    [
        "http://prometheus",
        "https://prometheus.example:9090",
        "http://127.0.0.1:9090/tenant-1/",
        "http://[::1]:9090",
    ],
)
def test_a_prometheus_has_an_address(url: str) -> None:
    assert PrometheusSource(url).url == url


@pytest.mark.parametrize(
    "url",
    ["", "prometheus:9090", "ftp://prometheus", "http://me:secret@prometheus", "http://prometheus/?a=b", "http://p:x"],
)
def test_an_address_that_cannot_be_asked_or_that_holds_a_password_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"--prometheus-url: .* give an address such as") as refused:
        PrometheusSource(url)
    assert "secret" not in str(refused.value)
