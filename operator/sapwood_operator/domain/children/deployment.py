"""The engine's Deployment: pods of one revision after another."""

from __future__ import annotations

from typing import Any

from sapwood_operator.domain import names, pod_template
from sapwood_operator.domain.children.base import child
from sapwood_operator.domain.children.pod import engine_pod
from sapwood_operator.domain.spec import ServiceSpec
from sapwood_operator.settings import OperatorSettings

API_VERSION, KIND = "apps/v1", "Deployment"
_KEPT_REVISIONS = 3
"""Former ReplicaSets, for ``kubectl rollout undo`` and for telling what a rollout began with."""


def deployment(spec: ServiceSpec, settings: OperatorSettings, replicas: int) -> dict[str, Any]:
    """Return the Deployment; raises `InvalidSpec` for arguments or a pod template that cannot be used.

    ``replicas`` always stands in it: a field manager that stops applying a field gives it back to its default, 1.
    """
    return child(
        API_VERSION,
        KIND,
        names.engine(spec.name),
        spec,
        spec={
            "replicas": replicas,
            "paused": False,  # no deadline runs for one that somebody paused, so it would wait for ever without a word
            "revisionHistoryLimit": _KEPT_REVISIONS,
            "progressDeadlineSeconds": settings.progress_deadline_seconds,
            "selector": {"matchLabels": names.selector(spec.name)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": spec.rollout.max_surge,
                    "maxUnavailable": spec.rollout.max_unavailable,
                },
            },
            "template": pod_template.overlay(engine_pod(spec, settings), spec.pod_template),
        },
    )
