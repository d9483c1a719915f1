"""An InferenceService as typed values: defaults, choices, and a field path for everything that cannot be used."""

from __future__ import annotations

from typing import Any

import pytest
from support_operator import a_service

from sapwood_contract.alerting import TTFT_BORDERS, ServiceObjectives
from sapwood_operator.domain.model import (
    BuiltinModel,
    ClaimCache,
    ClaimModel,
    HubModel,
    NodeCache,
    PathModel,
    PodCache,
    SecretKey,
)
from sapwood_operator.domain.observability import NoTracing, Observability, Tracing
from sapwood_operator.domain.routing import Routing, Tenancy
from sapwood_operator.domain.scaling_policy import ScalingPolicy
from sapwood_operator.domain.spec import MAX_LEVELS, FixedReplicas, PolicyRef, Rollout, ScaledReplicas, read
from sapwood_operator.errors import InvalidSpec


def test_the_smallest_service_has_every_default() -> None:
    spec = read(a_service())
    assert spec.model.served_name == "chat"
    assert spec.model.source == BuiltinModel("smollm2-135m")
    assert spec.model.cache == PodCache()
    assert spec.replicas == FixedReplicas(1)
    assert spec.engine.device == "CPU"
    assert spec.rollout == Rollout(max_surge=1, max_unavailable=0, drain_seconds=600)
    assert spec.min_available is None
    assert spec.routing == Routing(
        policy="PrefixAffinity", hot_prefix_replicas=(1, 4), queue_max_requests=0, queue_max_wait_seconds=30
    )
    assert spec.tenancy == Tenancy(authentication="None", cache_sharing="Tenant")
    assert (spec.engine.miss_ratio_curve, spec.engine.mrc_sample_rate) == (True, 0.05)
    assert spec.observability == Observability(
        pod_monitor="Auto", alerts="Auto", objectives=ServiceObjectives(), tracing=NoTracing()
    )


@pytest.mark.parametrize(("alerts", "read_as"), [(None, "Auto"), (True, "Enabled"), (False, "Disabled")])
def test_alerts_are_made_where_they_can_be_unless_somebody_says(alerts: bool | None, read_as: str) -> None:
    assert read(a_service(observability={"alerts": alerts})).observability.alerts == read_as


@pytest.mark.parametrize(("given", "ratio"), [({}, 0.01), ({"samplingRatio": "0"}, 0), ({"samplingRatio": "1"}, 1)])
def test_of_traces_a_share_is_kept(given: dict[str, Any], ratio: float) -> None:
    tracing = {"endpoint": "http://collector:4318", **given}
    assert read(a_service(observability={"tracing": tracing})).observability.tracing == Tracing(
        "http://collector:4318", ratio
    )


@pytest.mark.parametrize(
    ("promised", "counted"),
    [("2s", 2.0), ("1500ms", 2.0), ("1s500ms", 2.0), ("3s", 5.0), ("1ms", 0.001), ("2h", TTFT_BORDERS[-1])],
)
def test_a_promise_is_held_to_the_next_time_that_is_counted(promised: str, counted: float) -> None:
    service = a_service(autoscaling={"maxReplicas": 2, "slo": {"ttftP90": promised}})
    assert read(service).observability.objectives == ServiceObjectives(ttft_seconds=counted)


@pytest.mark.parametrize(
    ("queue", "held", "wait"), [({}, 100, 30), ({"maxRequests": 5}, 5, 30), ({"maxWait": "1m30s"}, 100, 90)]
)
def test_a_queue_holds_requests_as_soon_as_it_is_asked_for(queue: dict[str, Any], held: int, wait: float) -> None:
    routing = read(a_service(routing={"queue": queue})).routing
    assert (routing.queue_max_requests, routing.queue_max_wait_seconds) == (held, wait)


@pytest.mark.parametrize("sharing", ["None", "Tenant", "Group", "Public"])
def test_with_keys_a_cache_is_shared_as_the_service_says(sharing: str) -> None:
    tenancy = {"authentication": "ApiKey", "cacheSharing": sharing}
    assert read(a_service(tenancy=tenancy)).tenancy.cache_sharing == sharing


@pytest.mark.parametrize(
    ("source", "read_as"),
    [
        ({"builtin": "smollm2-135m"}, BuiltinModel("smollm2-135m")),
        ({"huggingFace": {"repo": "owner/name"}}, HubModel("owner/name", "")),
        ({"huggingFace": {"repo": "owner/name", "revision": "v2"}}, HubModel("owner/name", "v2")),
        ({"pvc": {"claimName": "weights"}}, ClaimModel("weights", "")),
        ({"pvc": {"claimName": "weights", "path": "/llama/8b/"}}, ClaimModel("weights", "llama/8b")),
        ({"path": "/opt/model"}, PathModel("/opt/model")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_every_source_is_read(source: dict[str, Any], read_as: object) -> None:
    assert read(a_service(model={"source": source})).model.source == read_as


@pytest.mark.parametrize(
    ("cache", "read_as"),
    [
        ({"persistentVolumeClaim": {"claimName": "models"}}, ClaimCache("models")),
        ({"nodePath": "/var/models"}, NodeCache("/var/models")),
    ],
    ids=["claim", "node"],
)
def test_every_cache_is_read(cache: dict[str, Any], read_as: object) -> None:
    assert read(a_service(model={"source": {"builtin": "x"}, "cache": cache})).model.cache == read_as


def test_the_token_is_a_reference_and_its_key_has_a_default() -> None:
    model = {"source": {"huggingFace": {"repo": "o/n"}}, "tokenSecretRef": {"name": "hub"}}
    assert read(a_service(model=model)).model.token == SecretKey("hub", "token")


@pytest.mark.parametrize(
    ("engine", "resources", "device"),
    [
        ({}, {}, "CPU"),
        ({}, {"limits": {"nvidia.com/gpu": "1"}}, "CUDA"),
        ({"device": "Auto"}, {"requests": {"nvidia.com/gpu": 1}}, "CUDA"),
        ({"device": "Auto"}, {"limits": {"nvidia.com/gpu": "0"}}, "CPU"),
        ({"device": "CPU"}, {"limits": {"nvidia.com/gpu": "1"}}, "CPU"),
        ({"device": "CUDA"}, {}, "CUDA"),
    ],
)
def test_auto_is_cuda_where_a_gpu_is_asked_for(engine: Any, resources: Any, device: str) -> None:
    assert read(a_service(engine=engine, resources=resources)).engine.device == device


@pytest.mark.parametrize(
    ("fields", "replicas"),
    [
        ({"replicas": 0}, FixedReplicas(0)),
        ({"replicas": 3}, FixedReplicas(3)),
        (
            {"autoscaling": {"minReplicas": 2, "maxReplicas": 8}},
            ScaledReplicas(ScalingPolicy(min_replicas=2, max_replicas=8)),
        ),
        ({"autoscaling": {"policyRef": {"name": "shared"}}}, ScaledReplicas(PolicyRef("shared"))),
    ],
    ids=["zero", "three", "scaled", "by policy"],
)
def test_who_decides_the_number_of_replicas_is_read(fields: dict[str, Any], replicas: object) -> None:
    assert read(a_service(**fields)).replicas == replicas


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": {"source": {}}}, r"spec.model.source: \[\] cannot be used: give exactly one of"),
        ({"model": {"source": {"builtin": "x", "path": "/y"}}}, "spec.model.source: .* give exactly one of"),
        ({"model": {"source": {"s3": {"bucket": "b"}}}}, "spec.model.source.s3: .* not built yet"),
        ({"model": {"source": {"pvc": {"claimName": "c", "path": "a/../../b"}}}}, "spec.model.source.pvc.path: .*"),
        ({"model": {"source": {"builtin": 7}}}, "spec.model.source.builtin: 7 cannot be used: give a text"),
        ({"engine": {"contextLength": "many"}}, "spec.engine.contextLength: 'many' .* whole number"),
        ({"engine": {"contextLength": True}}, "spec.engine.contextLength: True .* whole number"),
        ({"engine": {"memoryFraction": "1.5"}}, "spec.engine.memoryFraction: '1.5' .* above 0 and below 1"),
        ({"engine": {"memoryFraction": 0.5}}, "spec.engine.memoryFraction: 0.5 .* as a text"),
        ({"engine": {"kvCache": {"radix": {"evictionPolicy": "Best"}}}}, "evictionPolicy: 'Best' .* LRU, LFU"),
        ({"engine": []}, r"spec.engine: \[\] .* give an object"),
        ({"engine": {"extraArgs": "--seed=1"}}, "spec.engine.extraArgs: .* list of texts"),
        ({"placement": {"tolerations": ["x"]}}, "spec.placement.tolerations: .* list of objects"),
        ({"replicas": -1}, "spec.replicas: -1 .* at least 0"),
        ({"autoscaling": {"minReplicas": 3, "maxReplicas": 2}}, "spec.autoscaling.maxReplicas: 2 .* at least 3"),
        ({"autoscaling": {"policyRef": {}}}, "spec.autoscaling.policyRef.name: None .* required"),
        (
            {"autoscaling": {"maxReplicas": 2, "slo": {"ttftP90": "0s"}}},
            "spec.autoscaling.slo.ttftP90: '0s' .* above zero",
        ),
        ({"observability": {"alerts": "yes"}}, "spec.observability.alerts: 'yes' .* true or false"),
        ({"observability": {"tracing": {}}}, "spec.observability.tracing.endpoint: None .* required"),
        (
            {"observability": {"tracing": {"endpoint": "http://a", "samplingRatio": "2"}}},
            'spec.observability.tracing.samplingRatio: \'2\' .* from "0" to "1"',
        ),
        (
            {"engine": {"kvCache": {"missRatioCurve": {"sampleRate": "0"}}}},
            'spec.engine.kvCache.missRatioCurve.sampleRate: \'0\' .* from "0.001" to "1"',
        ),
        ({"rollout": {"maxSurge": "a lot"}}, "spec.rollout.maxSurge: 'a lot' .* a percentage"),
        ({"rollout": {"drainTimeout": "soon"}}, "spec.rollout.drainTimeout: 'soon' .* a duration"),
        ({"rollout": {"drainTimeout": 600}}, "spec.rollout.drainTimeout: 600 .* a duration"),
        ({"exposure": {"ingress": {}}}, "spec.exposure.ingress.host: None .* required"),
        ({"tenancy": {"authentication": "Maybe"}}, "spec.tenancy.authentication: 'Maybe' .* None, ApiKey"),
        ({"tenancy": {"cacheSharing": "Group"}}, "spec.tenancy.cacheSharing: 'Group' .* authentication to ApiKey"),
        ({"routing": {"policy": "Fastest"}}, "spec.routing.policy: 'Fastest' .* PrefixAffinity"),
        ({"routing": {"hotPrefixReplicas": {"min": 5}}}, "spec.routing.hotPrefixReplicas.min: 5 .* above max, 4"),
        ({"routing": {"queue": {"maxWait": "soon"}}}, "spec.routing.queue.maxWait: 'soon' .* a duration"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value.partition(":")[0],
)
def test_what_cannot_be_used_is_refused_by_its_path(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        read(a_service(**fields))


def nested(levels: int) -> Any:
    return {"a": [nested(levels - 2)]} if levels > 1 else {"a": 1}


def test_a_spec_may_be_nested_as_deeply_as_pods_are_and_no_deeper() -> None:
    read(a_service(podTemplate=nested(MAX_LEVELS - 1)))
    with pytest.raises(InvalidSpec, match=r"spec.podTemplate: .* nested more than 64 levels deep"):
        read(a_service(podTemplate=nested(MAX_LEVELS + 1)))
