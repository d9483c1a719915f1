"""An InferenceService as typed values: what the user asks for, defaults filled in.

Fields whose behaviour is not built yet are not read here; `domain.unsupported` names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from sapwood_contract.launch import AttentionBackendName, EvictionPolicyName, SchedulerPolicy
from sapwood_operator.domain import names
from sapwood_operator.domain.exposure import Exposure, read_exposure
from sapwood_operator.domain.fields import Fields
from sapwood_operator.domain.model import ModelSpec, read_model
from sapwood_operator.domain.observability import Observability, read_observability
from sapwood_operator.domain.routing import Routing, Tenancy, read_routing, read_tenancy
from sapwood_operator.domain.scaling_policy import ScalingPolicy, read_scaling_policy
from sapwood_operator.errors import InvalidSpec

Device = Literal["CPU", "CUDA"]

DEFAULT_DRAIN_SECONDS = 600.0
DEFAULT_SURGE = 1
"""With `DEFAULT_UNAVAILABLE` 0: the only replica does not vanish while its successor loads the model."""
DEFAULT_UNAVAILABLE = 0

DEFAULT_MRC_SAMPLE_RATE = 0.05
LEAST_MRC_SAMPLE_RATE = 0.001
"""The least that the engine takes."""
MAX_LEVELS = 64
"""How deeply a spec may be nested; a pod template that means something comes to about 15 levels."""
GPU = "nvidia.com/gpu"
SCHEDULERS: Mapping[str, SchedulerPolicy] = {
    "Sapwood": "sapwood",
    "FCFS": "fcfs",
    "LPM": "lpm",
    "DFSWeight": "dfs-weight",
    "LOF": "lof",
    "Random": "random",
    "RoutingKey": "routing-key",
    "Priority": "priority",
}
EVICTIONS: Mapping[str, EvictionPolicyName] = {
    "LRU": "lru",
    "LFU": "lfu",
    "SLRU": "slru",
    "FIFO": "fifo",
    "MRU": "mru",
    "FILO": "filo",
    "Priority": "priority",
    "TTL": "ttl",
    "Cost": "cost",
}
ATTENTION: Mapping[str, AttentionBackendName] = {"Auto": "auto", "CPU": "cpu", "Reference": "reference"}
"""Those that this engine has; others are `Unsupported` and fall back to ``auto``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """How one replica computes; ``None``: the engine decides."""

    image: str | None
    device: Device
    context_length: int | None
    memory_fraction: float | None
    page_size: int | None
    prefix_cache: bool
    eviction_policy: EvictionPolicyName
    miss_ratio_curve: bool
    mrc_sample_rate: float
    """Share of the pages that the curve follows."""
    scheduler_policy: SchedulerPolicy
    max_running: int | None
    max_queued: int | None
    chunk_tokens: int | None
    attention_backend: AttentionBackendName
    extra_args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which nodes the pods may run on; in the pod template's own words."""

    node_selector: Mapping[str, Any]
    tolerations: tuple[Mapping[str, Any], ...]
    topology_spread: tuple[Mapping[str, Any], ...]
    priority_class: str | None


@dataclass(frozen=True, slots=True)
class FixedReplicas:
    """The user, or who owns ``/scale``, says how many."""

    count: int


@dataclass(frozen=True, slots=True)
class PolicyRef:
    """An AutoscalingPolicy of the service's namespace."""

    name: str


@dataclass(frozen=True, slots=True)
class ScaledReplicas:
    """The autoscaler says how many, by a rule of the service's own or by a shared one."""

    by: ScalingPolicy | PolicyRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How one revision follows another."""

    max_surge: int | str
    max_unavailable: int | str
    drain_seconds: float
    """How long a leaving replica may go on with the requests that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """One InferenceService."""

    name: str
    namespace: str
    uid: str
    model: ModelSpec
    engine: EngineSpec
    resources: Mapping[str, Any]
    placement: Placement
    replicas: FixedReplicas | ScaledReplicas
    routing: Routing
    exposure: Exposure
    tenancy: Tenancy
    rollout: Rollout
    min_available: int | str | None
    """Pods that a node's drain leaves; None: it may take one at a time."""
    observability: Observability
    pod_template: Mapping[str, Any]


def read(service: Mapping[str, Any]) -> ServiceSpec:
    """Read a live InferenceService; raises `InvalidSpec` naming the first field that cannot be used."""
    document = Fields(service, "")
    metadata, spec = document.inner("metadata"), document.inner("spec")
    for field, value in spec.values.items():
        if _is_deeper(value, MAX_LEVELS):
            raise InvalidSpec(f"spec.{field}", value, f"it is nested more than {MAX_LEVELS} levels deep")
    name = names.check_name(metadata.text("name"))
    return ServiceSpec(
        name=name,
        namespace=metadata.text("namespace"),
        uid=metadata.text("uid"),
        model=read_model(spec.inner("model"), service_name=name),
        engine=_read_engine(spec),
        resources=spec.inner("resources").values,
        placement=_read_placement(spec.inner("placement")),
        replicas=_read_replicas(spec),
        routing=read_routing(spec.inner("routing")),
        exposure=read_exposure(spec.inner("exposure")),
        tenancy=read_tenancy(spec.inner("tenancy")),
        rollout=_read_rollout(spec.inner("rollout")),
        min_available=_read_min_available(spec.inner("disruption")),
        observability=read_observability(spec.inner("observability"), spec.inner("autoscaling").inner("slo")),
        pod_template=spec.inner("podTemplate").values,
    )


def _is_deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return any(levels == 0 or _is_deeper(item, levels - 1) for item in inner)


def _read_engine(spec: Fields) -> EngineSpec:
    engine = spec.inner("engine")
    cache = engine.inner("kvCache")
    radix, curve = cache.inner("radix"), cache.inner("missRatioCurve")
    scheduler = engine.inner("scheduler")
    return EngineSpec(
        image=engine.text("image") if engine.has("image") else None,
        device=_read_device(engine, spec.inner("resources")),
        context_length=_whole(engine, "contextLength"),
        memory_fraction=engine.share("memoryFraction") if engine.has("memoryFraction") else None,
        page_size=_whole(cache, "pageSize"),
        prefix_cache=radix.switch("enabled", True),
        eviction_policy=EVICTIONS[radix.choice("evictionPolicy", "LRU", EVICTIONS)],
        miss_ratio_curve=curve.switch("enabled", True),
        mrc_sample_rate=curve.ratio("sampleRate", DEFAULT_MRC_SAMPLE_RATE, least=LEAST_MRC_SAMPLE_RATE),
        scheduler_policy=SCHEDULERS[scheduler.choice("policy", "Sapwood", SCHEDULERS)],
        max_running=_whole(scheduler, "maxRunning"),
        max_queued=_whole(scheduler, "maxQueued"),
        chunk_tokens=_whole(scheduler, "chunkedPrefillTokens"),
        attention_backend=ATTENTION.get(engine.text("attentionBackend", "Auto"), "auto"),
        extra_args=engine.texts("extraArgs"),
    )


def _whole(fields: Fields, name: str) -> int | None:
    return fields.integer(name, least=1) if fields.has(name) else None


def _read_device(engine: Fields, resources: Fields) -> Device:
    """``Auto``: CUDA where a GPU is asked for, for nothing else would make use of it."""
    asked = engine.choice("device", "Auto", ("Auto", "CPU", "CUDA"))
    if asked != "Auto":
        return cast(Device, asked)
    return "CUDA" if any(str(resources.inner(part).values.get(GPU, "0")) != "0" for part in _PARTS) else "CPU"


_PARTS = ("limits", "requests")


def _read_placement(placement: Fields) -> Placement:
    return Placement(
        node_selector=placement.inner("nodeSelector").values,
        tolerations=placement.objects("tolerations"),
        topology_spread=placement.objects("topologySpread"),
        priority_class=placement.text("priorityClassName") if placement.has("priorityClassName") else None,
    )


def _read_replicas(spec: Fields) -> FixedReplicas | ScaledReplicas:
    if spec.has("replicas"):
        return FixedReplicas(spec.integer("replicas"))
    if not spec.has("autoscaling"):
        return FixedReplicas(1)
    autoscaling = spec.inner("autoscaling")
    if autoscaling.has("policyRef"):
        return ScaledReplicas(PolicyRef(autoscaling.inner("policyRef").text("name")))
    return ScaledReplicas(read_scaling_policy(autoscaling))


def _read_rollout(rollout: Fields) -> Rollout:
    return Rollout(
        max_surge=rollout.count_or_share("maxSurge", DEFAULT_SURGE),
        max_unavailable=rollout.count_or_share("maxUnavailable", DEFAULT_UNAVAILABLE),
        drain_seconds=rollout.seconds("drainTimeout", DEFAULT_DRAIN_SECONDS),
    )


def _read_min_available(disruption: Fields) -> int | str | None:
    return disruption.count_or_share("minAvailable", 0) if disruption.has("minAvailable") else None
