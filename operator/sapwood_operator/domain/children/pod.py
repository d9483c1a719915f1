"""One replica: the pod template of the engine, as the restricted Pod Security profile wants it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sapwood_contract import http
from sapwood_operator.domain import launch, names
from sapwood_operator.domain.children.credential import credential_name
from sapwood_operator.domain.model import ClaimCache, ClaimModel, ModelCache, NodeCache, PodCache
from sapwood_operator.domain.spec import Placement, ServiceSpec
from sapwood_operator.settings import OperatorSettings

_USER = 10001
"""Of the image; no user of a node has it."""
_PROPAGATION_SECONDS = 5
"""Between the decision to stop a pod and SIGTERM: until then it serves, while gateways learn that it leaves."""
_GRACE_SECONDS = 30
"""Beyond propagation and drain: to end the worker and free the device."""
_STARTUP_SECONDS = 3600
"""How long a replica may download and load; the Deployment's deadline speaks earlier, but kills nothing."""
_STARTUP_PERIOD_SECONDS = 2
_CACHE_FOLDER = "/cache"
_READABLE_BY_GROUP = 0o440
"""The engine's user is no owner of a mounted Secret's files, but in the pod's group."""


def engine_pod(spec: ServiceSpec, settings: OperatorSettings) -> dict[str, Any]:
    """Return the pod template before ``spec.podTemplate``; raises `InvalidSpec` for arguments that cannot be used."""
    pod = {
        "serviceAccountName": names.engine(spec.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(spec.rollout.drain_seconds) + _GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            # Else each start of a pod walks through all files of the volume.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_engine(spec, settings)],
        "volumes": _volumes(spec, settings),
        **_placement(spec.placement, spec.name),
    }
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return {"metadata": {"labels": names.labels(spec.name)}, "spec": pod}


def _engine(spec: ServiceSpec, settings: OperatorSettings) -> dict[str, Any]:
    default_image = settings.engine_cuda_image if spec.engine.device == "CUDA" else settings.engine_image
    container = {
        "name": names.ENGINE_CONTAINER,
        "image": spec.engine.image or default_image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": launch.args(spec, settings),
        "env": _environment(spec),
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in launch.ports(spec).items()
        ],
        "startupProbe": _probe(
            http.READYZ, period=_STARTUP_PERIOD_SECONDS, failures=_STARTUP_SECONDS // _STARTUP_PERIOD_SECONDS
        ),
        "readinessProbe": _probe(http.READYZ, period=2, failures=2),
        "livenessProbe": _probe(http.LIVEZ, period=10, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": _PROPAGATION_SECONDS}}},
        # An engine's last words say why it ended, and `kubectl get -o yaml` shows them.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _mounts(spec, settings),
    }
    if spec.resources:
        container["resources"] = dict(spec.resources)
    return container


def _environment(spec: ServiceSpec) -> list[Mapping[str, Any]]:
    variables: list[Mapping[str, Any]] = [
        {"name": "HOME", "value": "/tmp"},
        {"name": "XDG_CACHE_HOME", "value": _CACHE_FOLDER},
        {"name": "HF_HOME", "value": f"{_CACHE_FOLDER}/huggingface"},
    ]
    if spec.model.token is not None:
        reference = {"name": spec.model.token.name, "key": spec.model.token.key}
        variables.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return variables


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "admin"},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": 5,
    }


def _volumes(spec: ServiceSpec, settings: OperatorSettings) -> list[Mapping[str, Any]]:
    volumes: list[Mapping[str, Any]] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "cache", **_cache_volume(spec.model.cache)},
    ]
    if isinstance(spec.model.source, ClaimModel):
        claim = {"claimName": spec.model.source.claim, "readOnly": True}
        volumes.append({"name": "models", "persistentVolumeClaim": claim})
    if launch.has_credential(spec, settings):
        secret = {"secretName": credential_name(spec, settings), "defaultMode": _READABLE_BY_GROUP}
        volumes.append({"name": "credential", "secret": secret})
    return volumes


def _cache_volume(cache: ModelCache) -> Mapping[str, Any]:
    match cache:
        case PodCache():
            return {"emptyDir": {}}
        case ClaimCache(claim):
            return {"persistentVolumeClaim": {"claimName": claim}}
        case NodeCache(path):
            # One that the kubelet would make belongs to root, and the engine could not write to it.
            return {"hostPath": {"path": path, "type": "Directory"}}


def _mounts(spec: ServiceSpec, settings: OperatorSettings) -> list[Mapping[str, Any]]:
    mounts: list[Mapping[str, Any]] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "cache", "mountPath": _CACHE_FOLDER},
    ]
    if isinstance(spec.model.source, ClaimModel):
        mounts.append({"name": "models", "mountPath": launch.MODEL_FOLDER, "readOnly": True})
    if launch.has_credential(spec, settings):
        mounts.append({"name": "credential", "mountPath": launch.CREDENTIAL_FOLDER, "readOnly": True})
    return mounts


def _placement(placement: Placement, name: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if placement.node_selector:
        fields["nodeSelector"] = dict(placement.node_selector)
    if placement.tolerations:
        fields["tolerations"] = [dict(toleration) for toleration in placement.tolerations]
    if placement.topology_spread:
        fields["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": names.selector(name)},
                # So that pods of the former revision, which leave soon, do not count.
                "matchLabelKeys": ["pod-template-hash"],
                **constraint,
            }
            for constraint in placement.topology_spread
        ]
    if placement.priority_class is not None:
        fields["priorityClassName"] = placement.priority_class
    return fields
