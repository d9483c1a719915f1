"""For every CEL rule in ``crds/``: objects that it accepts, objects that it refuses, and where and how it says so.

``tests/crds`` checks that no rule lacks a case and that the schema alone would let every object pass; the objects
themselves go to a real API server in ``e2e/test_crds.py``. It is long because it is one table.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from support_crds import API_VERSION

Changes = Mapping[str, Any]
"""Values by their path in the object, as ``{"spec.engine.device": "CPU"}``."""

Reason = Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired"]

SMALLEST: Mapping[str, Mapping[str, Any]] = {
    "InferenceService": {"model": {"source": {"builtin": "smollm2-135m"}}},
    "LoRAAdapter": {"serviceRef": {"name": "chat"}, "source": {"path": "/adapters/sql"}},
    "AutoscalingPolicy": {"maxReplicas": 4},
    "Tenant": {},
}
"""The least ``spec`` of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One rule: `accepted` and `refused` differ in nothing else than what the rule is about."""

    id: str
    kind: str = "InferenceService"
    before: Changes | None = None
    """For rules about changes: what the stored object has."""
    accepted: Changes
    refused: Changes
    field: str
    message: str
    reason: Reason = "FieldValueInvalid"

    def __str__(self) -> str:
        return f"{self.kind}-{self.id}"


def manifest(kind: str, changes: Changes) -> dict[str, Any]:
    """Return the smallest object of ``kind`` with ``changes``."""
    made: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": "case"},
        "spec": copy.deepcopy(dict(SMALLEST[kind])),
    }
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = made
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = copy.deepcopy(value)
    return made


def _policy(kind: str, spec: str) -> list[Case]:
    """A policy means the same in an object of its own and inside of a service."""
    least = {f"{spec}.maxReplicas": 4}
    above_zero = 'give a share above "0" and at most "1"'

    def one(id_: str, path: str, accepted: Any, refused: Any, message: str, **others: Any) -> Case:
        return Case(
            id=f"policy-{id_}",
            kind=kind,
            accepted={**least, f"{spec}.{path}": accepted, **others},
            refused={**least, f"{spec}.{path}": refused, **others},
            field=f"{spec}.{path}",
            message=message,
        )

    def limited(direction: str, period: str) -> dict[str, Any]:
        return {f"{spec}.behavior.{direction}.policies": [{"type": "Percent", "value": 50, "period": period}]}

    zero = f"{spec}.minReplicas"
    asleep = {f"{spec}.scaleToZero.enabled": True}
    return [
        one("min-above-max", "minReplicas", 4, 5, "minReplicas is above maxReplicas; lower it, or raise maxReplicas"),
        Case(
            id="policy-zero-without-scale-to-zero",
            kind=kind,
            accepted={**least, zero: 0, **asleep},
            refused={**least, zero: 0, f"{spec}.scaleToZero.enabled": False},
            field=zero,
            message="minReplicas 0 needs scaleToZero.enabled; set it to true, or begin with 1",
        ),
        one(
            "fallback-above-max",
            "missingMetrics.fallbackReplicas",
            4,
            5,
            "fallbackReplicas is above maxReplicas; lower it, or raise maxReplicas",
        ),
        *(
            one(f"{goal}-of-nothing", f"slo.{goal}", "1ms", "0s", "give a time above zero, or leave it out")
            for goal in ("ttftP90", "itlP90")
        ),
        *(
            one(f"{share}-of-nothing", f"capacity.{share}", "0.01", "0.0", above_zero)
            for share in ("prefillUtilization", "kvUtilization", "scaleDownMargin")
        ),
        *(
            one(
                f"{direction}-window-too-long",
                f"behavior.{direction}.stabilizationWindow",
                "60m",
                "1h1s",
                "give a window of at most 1h",
            )
            for direction in ("scaleUp", "scaleDown")
        ),
        *(
            Case(
                id=f"policy-{direction}-period-{period}",
                kind=kind,
                accepted={**least, **limited(direction, "30m")},
                refused={**least, **limited(direction, period)},
                field=f"{spec}.behavior.{direction}.policies[0].period",
                message="give a period above zero and up to 30m",
            )
            for direction in ("scaleUp", "scaleDown")
            for period in ("0m", "31m")
        ),
    ]


_NAME = "metadata.name"
_SOURCE = "spec.model.source"
_CACHE = "spec.model.cache"
_SHARED = "spec.engine.kvCache.shared"
_DRAFT = "spec.engine.speculative"
_ARGS = "spec.engine.extraArgs"
_AUTOSCALING = "spec.autoscaling"
_ROLLOUT = "spec.rollout"
_INGRESS = "spec.exposure.ingress"
_GATEWAY = "spec.exposure.gateway"
_LABELS = "spec.podTemplate.metadata.labels"

_HUB = {"huggingFace": {"repo": "acme/base", "revision": "v1"}}
_HUB_LATER = {"huggingFace": {"repo": "acme/base", "revision": "v2"}}
_OTHER_HUB = {"huggingFace": {"repo": "acme/other", "revision": "v1"}}
_PATH = {"path": "/models/base"}
_CLAIM = {"pvc": {"claimName": "weights", "path": "a..b/c"}}
_OUTSIDE = {"pvc": {"claimName": "weights", "path": "a/../../b"}}

_CHANGED_SOURCE = Case(
    id="other-source-under-the-same-name",
    before={_SOURCE: _HUB},
    accepted={_SOURCE: _OTHER_HUB, "spec.model.name": "other"},
    refused={_SOURCE: _OTHER_HUB},
    field=_SOURCE,
    message=(
        "another source under the same name would mix two models' answers; change spec.model.name or "
        "source.huggingFace.revision together with the source"
    ),
    reason="FieldValueForbidden",
)
_SOURCES = Case(
    id="two-sources",
    accepted={_SOURCE: _PATH},
    refused={_SOURCE: _PATH | _HUB},
    field=_SOURCE,
    message="give exactly one of huggingFace, s3, pvc, path and builtin",
)
_INSIDE = Case(
    id="path-outside-its-volume",
    accepted={_SOURCE: _CLAIM},
    refused={_SOURCE: _OUTSIDE},
    field=f"{_SOURCE}.pvc.path",
    message="the path must stay inside the volume; remove '..'",
)
_CACHES = Case(
    id="two-caches",
    accepted={_CACHE: {"nodePath": "/var/cache/models"}},
    refused={_CACHE: {"nodePath": "/var/cache/models", "persistentVolumeClaim": {"claimName": "cache"}}},
    field=_CACHE,
    message=(
        "give exactly one of persistentVolumeClaim and nodePath, or remove cache for a folder that ends with its pod"
    ),
)
_BACKENDS = Case(
    id="shared-cache-without-its-section",
    accepted={_SHARED: {"backend": "Redis", "redis": {"address": "cache.example:6379"}}},
    refused={_SHARED: {"backend": "Redis"}},
    field=_SHARED,
    message=(
        "give the section of the chosen backend and no other: redis for Redis, filesystem for Filesystem, s3 for S3, "
        "mooncake for Mooncake"
    ),
)
_DENIED = Case(
    id="extra-arg-with-a-field-in-spec",
    accepted={_ARGS: ["--quantization=int8", "--max-step-tokens=4096"]},
    refused={_ARGS: ["--quantization=int8", "--page-size=32"]},
    field=f"{_ARGS}[1]",
    message=(
        "this option is set by the operator or has a field in spec; remove it, and use the field where there is one"
    ),
)
_NO_ROLLOUT = Case(
    id="rollout-that-can-replace-nothing",
    accepted={_ROLLOUT: {"maxSurge": 0, "maxUnavailable": 1}},
    refused={_ROLLOUT: {"maxSurge": 0, "maxUnavailable": 0}},
    field=f"{_ROLLOUT}.maxSurge",
    message="with maxSurge 0 and maxUnavailable 0 no replica could ever be replaced; raise one of them",
)
_FRACTION = Case(
    id="memory-fraction-above",
    accepted={"spec.engine.memoryFraction": "0.95"},
    refused={"spec.engine.memoryFraction": "0.951"},
    field="spec.engine.memoryFraction",
    message='give a share from "0.01" to "0.95"',
)
_SAMPLES = Case(
    id="sample-rate-of-too-little",
    accepted={"spec.engine.kvCache.missRatioCurve.sampleRate": "1.0"},
    refused={"spec.engine.kvCache.missRatioCurve.sampleRate": "0.0009"},
    field="spec.engine.kvCache.missRatioCurve.sampleRate",
    message='give a share from "0.001" to "1"; set enabled to false for none',
)
_DRAFTS = Case(
    id="eagle-without-a-draft",
    accepted={_DRAFT: {"method": "EAGLE", "draft": {"source": _PATH}}},
    refused={_DRAFT: {"method": "EAGLE"}},
    field=f"{_DRAFT}.draft",
    message="EAGLE drafts with a model of its own; give draft, or take the method NGram",
    reason="FieldValueRequired",
)
_KEY = {"name": "first", "sha256": "0" * 64}
_KEYS = Case(
    id="key-with-two-hashes",
    kind="Tenant",
    accepted={"spec.apiKeys": [_KEY]},
    refused={"spec.apiKeys": [_KEY | {"sha256SecretRef": {"name": "keys"}}]},
    field="spec.apiKeys[0]",
    message="give exactly one of sha256 and sha256SecretRef",
)
_HOST = Case(
    id="ingress-host-without-a-dot",
    accepted={_INGRESS: {"host": "chat.svc.example.com"}},
    refused={_INGRESS: {"host": "localhost"}},
    field=f"{_INGRESS}.host",
    message=(
        "a name without a dot, an IP address and NAME.NAMESPACE.svc are names inside of the cluster, which no service "
        "can claim; give a host name such as chat.example.com"
    ),
)
_OPERATORS_LABELS = (
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/component",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/part-of",
    "serving.sapwood.dev/service",
)

CASES: tuple[Case, ...] = (
    Case(
        id="name-too-long",
        accepted={_NAME: "a" * 40},
        refused={_NAME: "a" * 41},
        field=_NAME,
        message="metadata.name has more than 40 characters; shorten it, so that the names made from it fit",
    ),
    Case(
        id="name-that-begins-with-a-digit",
        accepted={_NAME: "chat-2"},
        refused={_NAME: "2-chat"},
        field=_NAME,
        message=(
            "metadata.name becomes the name of a Service; begin with a letter, end with a letter or digit, and use "
            "only a-z, 0-9 and '-'"
        ),
    ),
    Case(
        id="name-of-another-services-child",
        accepted={_NAME: "engine"},
        refused={_NAME: "base-engine"},
        field=_NAME,
        message=(
            "metadata.name ends in '-engine', as the names of what the operator makes for another service may "
            "(NAME-engine); choose another ending"
        ),
    ),
    Case(
        id="replicas-beside-autoscaling",
        accepted={_AUTOSCALING: {"maxReplicas": 4}},
        refused={_AUTOSCALING: {"maxReplicas": 4}, "spec.replicas": 4},
        field="spec.replicas",
        message="replicas and autoscaling both decide the number of replicas; remove one of them",
    ),
    _SOURCES,
    replace(_SOURCES, id="no-source", refused={_SOURCE: {}}),
    _INSIDE,
    replace(
        _INSIDE,
        id="draft-path-outside-its-volume",
        accepted={_DRAFT: {"method": "EAGLE", "draft": {"source": _CLAIM}}},
        refused={_DRAFT: {"method": "EAGLE", "draft": {"source": _OUTSIDE}}},
        field=f"{_DRAFT}.draft.source.pvc.path",
    ),
    replace(
        _INSIDE,
        id="adapter-path-outside-its-volume",
        kind="LoRAAdapter",
        accepted={"spec.source": _CLAIM},
        refused={"spec.source": _OUTSIDE},
        field="spec.source.pvc.path",
    ),
    Case(
        id="node-path-with-dots",
        accepted={_CACHE: {"nodePath": "/var/..cache"}},
        refused={_CACHE: {"nodePath": "/var/../etc"}},
        field=f"{_CACHE}.nodePath",
        message="a node path has no '..'; write the folder's own path",
    ),
    _CACHES,
    replace(_CACHES, id="no-cache", refused={_CACHE: {}}),
    _FRACTION,
    replace(_FRACTION, id="memory-fraction-below", refused={"spec.engine.memoryFraction": "0.009"}),
    _BACKENDS,
    *(
        replace(_BACKENDS, id=f"shared-cache-{backend}", accepted={_SHARED: fits}, refused={_SHARED: fits | more})
        for backend, fits, more in (
            ("s3", {"backend": "S3", "s3": {"bucket": "pages"}}, {"redis": {"address": "cache.example:6379"}}),
            (
                "mooncake",
                {"backend": "Mooncake", "mooncake": {"masterAddress": "store.example:50051"}},
                {"s3": {"bucket": "pages"}},
            ),
            (
                "filesystem",
                {"backend": "Filesystem", "filesystem": {"persistentVolumeClaim": {"claimName": "pages"}}},
                {"mooncake": {"masterAddress": "store.example:50051"}},
            ),
        )
    ),
    _SAMPLES,
    replace(_SAMPLES, id="sample-rate-above", refused={_SAMPLES.field: "1.1"}),
    _DRAFTS,
    replace(
        _DRAFTS,
        id="draft-with-two-sources",
        refused={_DRAFT: {"method": "EAGLE", "draft": {"source": _PATH | _HUB}}},
        field=f"{_DRAFT}.draft.source",
        message="give exactly one of huggingFace, pvc and path",
        reason="FieldValueInvalid",
    ),
    *(
        replace(
            _DENIED,
            id=f"extra-arg-as-{id_}",
            refused={_ARGS: ["--quantization=int8", argument]},
            message="write an option and its value as one item, --name=value",
        )
        for id_, argument in (("two-items", "--seed"), ("a-short-option", "-s=1"), ("a-word", "9000"))
    ),
    *(
        replace(_DENIED, id=f"extra-arg-{name}", refused={_ARGS: ["--quantization=int8", f"--{name}=x"]})
        for name in ("port", "host", "admin-port", "api-key", "api-key-file", "model", "served-model-name", "page-size")
    ),
    Case(
        id="policy-ref-beside-a-policy",
        accepted={_AUTOSCALING: {"policyRef": {"name": "shared"}}},
        refused={_AUTOSCALING: {"policyRef": {"name": "shared"}, "mode": "DryRun"}},
        field=f"{_AUTOSCALING}.policyRef",
        message="policyRef and fields of a policy exclude each other; remove policyRef, or everything beside it",
    ),
    Case(
        id="no-policy",
        accepted={_AUTOSCALING: {"maxReplicas": 4}},
        refused={_AUTOSCALING: {"mode": "DryRun"}},
        field=_AUTOSCALING,
        message="give policyRef, or at least maxReplicas",
    ),
    *_policy("InferenceService", _AUTOSCALING),
    *_policy("AutoscalingPolicy", "spec"),
    Case(
        id="hot-prefix-min-above-max",
        accepted={"spec.routing.hotPrefixReplicas": {"min": 4}},
        refused={"spec.routing.hotPrefixReplicas": {"min": 5}},
        field="spec.routing.hotPrefixReplicas.min",
        message="min is above max; lower it, or raise max",
    ),
    Case(
        id="sharing-without-keys",
        accepted={"spec.tenancy": {"authentication": "ApiKey", "cacheSharing": "Group"}},
        refused={"spec.tenancy": {"authentication": "None", "cacheSharing": "Group"}},
        field="spec.tenancy.cacheSharing",
        message="without API keys everybody is one tenant; set authentication to ApiKey, or take Tenant or Public",
    ),
    _NO_ROLLOUT,
    replace(
        _NO_ROLLOUT,
        id="rollout-of-no-share",
        accepted={_ROLLOUT: {"maxSurge": "25%", "maxUnavailable": "0%"}},
        refused={_ROLLOUT: {"maxSurge": "0%", "maxUnavailable": "0%"}},
    ),
    replace(_NO_ROLLOUT, id="rollout-without-surge-by-default", refused={_ROLLOUT: {"maxSurge": 0}}),
    Case(
        id="drain-of-more-than-a-day",
        accepted={f"{_ROLLOUT}.drainTimeout": "24h"},
        refused={f"{_ROLLOUT}.drainTimeout": "24h1s"},
        field=f"{_ROLLOUT}.drainTimeout",
        message="give at most 24h",
    ),
    _HOST,
    *(
        replace(_HOST, id=f"ingress-host-{id_}", refused={_INGRESS: {"host": host}})
        for id_, host in (
            ("address", "10.0.0.1"),
            ("service", "chat.team.svc"),
            ("full-name-of-a-service", "sapwood-gateway.sapwood.svc.cluster.local"),
        )
    ),
    *(
        replace(
            _HOST,
            id=f"hostname-{id_}",
            accepted={_GATEWAY: {"parentRefs": [{"name": "edge"}], "hostnames": ["chat.example.com", "*.example.com"]}},
            refused={_GATEWAY: {"parentRefs": [{"name": "edge"}], "hostnames": ["chat.example.com", host]}},
            field=f"{_GATEWAY}.hostnames[1]",
        )
        for id_, host in (("without-a-dot", "intranet"), ("address", "10.0.0.1"), ("services", "*.team.svc"))
    ),
    *(
        Case(
            id=f"label-of-the-operator-{label}",
            accepted={_LABELS: {"app.kubernetes.io/version": "mine"}},
            refused={_LABELS: {label: "mine"}},
            field=_LABELS,
            message=(
                "the operator finds its pods by app.kubernetes.io/{name,instance,component,managed-by,part-of} and "
                "serving.sapwood.dev/service; remove them here"
            ),
        )
        for label in _OPERATORS_LABELS
    ),
    _CHANGED_SOURCE,
    replace(_CHANGED_SOURCE, id="later-revision", accepted={_SOURCE: _HUB_LATER}),
    replace(_CHANGED_SOURCE, id="other-kind-of-source", refused={_SOURCE: _PATH}),
    replace(_CHANGED_SOURCE, id="name-that-it-had-anyway", refused={_SOURCE: _OTHER_HUB, "spec.model.name": "case"}),
    Case(
        id="adapter-with-two-sources",
        kind="LoRAAdapter",
        accepted={"spec.source": _HUB},
        refused={"spec.source": _PATH | _HUB},
        field="spec.source",
        message="give exactly one of huggingFace, s3, pvc and path",
    ),
    _KEYS,
    replace(_KEYS, id="key-without-a-hash", refused={"spec.apiKeys": [{"name": "first"}]}),
    replace(
        _KEYS,
        id="keys-with-the-same-hash",
        refused={"spec.apiKeys": [_KEY, _KEY | {"name": "second"}]},
        field="spec.apiKeys",
        message="two keys have the same sha256; give each key once",
    ),
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A value that the schema alone refuses, and a part of what the API server says of it."""

    field: str
    value: object
    says: str
    kind: str = "InferenceService"
    place: str = ""
    """What the API server names, where that is not the field."""

    def __str__(self) -> str:
        return f"{self.kind}-{self.field}-{self.value!r:.30}"


_ZONE = {"topologyKey": "topology.kubernetes.io/zone"}
_MANY_LABELS = {f"label-{number}": "" for number in range(33)}
_UPPER_CASE_KEY = {"name": "first", "sha256": "A" * 64}
BOUNDS = (
    Bound("spec", None, "Required value"),
    Bound("spec.model", None, "Required value"),
    Bound("spec.model", {}, "Required value", place="spec.model.source"),
    Bound("spec.model.name", "my model", "should match"),
    Bound("spec.model.name", "a" * 129, "may not be more than 128"),
    Bound("spec.model.source.builtin", "smollm2", 'supported values: "smollm2-135m"'),
    Bound("spec.model.source.huggingFace.repo", "base", "should match"),
    Bound("spec.model.source.path", "models/base", "should match"),
    Bound("spec.model.tokenSecretRef", {}, "Required value", place="spec.model.tokenSecretRef.name"),
    Bound("spec.engine.device", "cuda", 'supported values: "Auto", "CPU", "CUDA"'),
    Bound("spec.engine.memoryFraction", 0.5, "must be of type string"),
    Bound("spec.engine.contextLength", 1, "should be greater than or equal to 2"),
    Bound("spec.engine.kvCache.pageSize", 4097, "should be less than or equal to 4096"),
    Bound("spec.engine.scheduler.maxRunning", 2049, "should be less than or equal to 2048"),
    Bound("spec.engine.extraArgs", ["--seed=1"] * 33, "must have at most 32 items"),
    Bound("spec.resources.limits", {"memory": "lots"}, "should match", place="spec.resources.limits.memory"),
    Bound("spec.resources.limits", {"cpu": -1}, "greater than or equal to 0", place="spec.resources.limits.cpu"),
    Bound("spec.placement.nodeSelector", _MANY_LABELS, "must have at most 32 items"),
    Bound("spec.placement.topologySpread", [_ZONE, _ZONE], "Duplicate", place="spec.placement.topologySpread[1]"),
    Bound("spec.replicas", 1001, "should be less than or equal to 1000"),
    Bound("spec.rollout.maxSurge", "101%", "should match"),
    Bound("spec.rollout.maxSurge", -1, "should be greater than or equal to 0"),
    Bound("spec.exposure.ingress.host", "no_host", "should match"),
    Bound("spec.exposure.gateway.parentRefs", [], "should have at least 1 items"),
    Bound("spec.podTemplate.spec", dict.fromkeys(map(str, range(65)), 0), "must have at most 64 items"),
    Bound("spec.maxReplicas", None, "Required value", kind="AutoscalingPolicy"),
    Bound("spec.slo", {}, "should have at least 1 properties", kind="AutoscalingPolicy"),
    Bound("spec.slo.ttftP90", "-2s", "should match", kind="AutoscalingPolicy"),
    Bound("spec.serviceRef.name", "a" * 41, "may not be more than 40", kind="LoRAAdapter"),
    Bound("spec.apiKeys", [_UPPER_CASE_KEY], "should match", kind="Tenant", place="spec.apiKeys[0].sha256"),
    Bound("spec.quotas.tokensPerDay", -1, "should be greater than or equal to 0", kind="Tenant"),
)
