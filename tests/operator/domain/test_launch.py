"""What the operator renders is what the engine parses."""

from __future__ import annotations

from typing import Any

import pytest
from support_operator import SETTINGS, WITH_SECRET, a_service

from sapwood_contract import launch as contract
from sapwood_contract.launch import LaunchOptions
from sapwood_engine.config import engine_config
from sapwood_operator.domain import launch
from sapwood_operator.domain.spec import ATTENTION, EVICTIONS, SCHEDULERS, read
from sapwood_operator.errors import InvalidSpec

FULL: dict[str, Any] = {
    "model": {"name": "llama", "source": {"huggingFace": {"repo": "owner/name", "revision": "v1"}}},
    "engine": {
        "contextLength": 8192,
        "memoryFraction": "0.88",
        "kvCache": {
            "pageSize": 32,
            "radix": {"enabled": False, "evictionPolicy": "SLRU"},
            "missRatioCurve": {"enabled": False, "sampleRate": "0.1"},
        },
        "scheduler": {"policy": "LPM", "maxRunning": 128, "maxQueued": 2000, "chunkedPrefillTokens": 4096},
        "attentionBackend": "CPU",
        "extraArgs": ["--seed=7", "--quantization=int8"],
    },
    "rollout": {"drainTimeout": "2m"},
    "observability": {"tracing": {"endpoint": "http://collector.tracing.svc:4318", "samplingRatio": "1.0"}},
}


def engine_reads(service: dict[str, Any]) -> LaunchOptions:
    program, *argv = launch.args(read(service), SETTINGS)
    assert program == "serve"
    return contract.parse(argv)


def test_the_engine_reads_back_everything_that_the_spec_says() -> None:
    assert engine_reads(a_service(**FULL)) == LaunchOptions(
        model="owner/name@v1",
        served_model_name="llama",
        host="0.0.0.0",
        port=8000,
        admin_host="0.0.0.0",
        admin_port=8001,
        kv_events_port=8002,
        context_length=8192,
        memory_fraction=0.88,
        page_size=32,
        prefix_cache="off",
        eviction_policy="slru",
        miss_ratio_curve="off",
        mrc_sample_rate=0.1,
        scheduler_policy="lpm",
        max_running=128,
        max_queued=2000,
        chunk_tokens=4096,
        max_step_tokens=4096,
        attention_backend="cpu",
        drain_seconds=120,
        otlp_endpoint="http://collector.tracing.svc:4318",
        trace_sampling_ratio=1.0,
        seed=7,
        quantization="int8",
    )


@pytest.mark.parametrize("autoscaling", [{"maxReplicas": 2}, {"policyRef": {"name": "day"}}])
def test_replicas_that_scale_wait_for_prefixes_before_they_are_ready(autoscaling: dict[str, Any]) -> None:
    assert engine_reads(a_service(autoscaling=autoscaling)).warm_wait_seconds == 30.0
    assert engine_reads(a_service(replicas=2)).warm_wait_seconds == 0.0


def test_what_the_spec_leaves_out_the_engine_decides() -> None:
    assert launch.args(read(a_service()), SETTINGS) == [
        "serve",
        "--served-model-name=chat",
        "--host=0.0.0.0",
        "--admin-host=0.0.0.0",
        "--admin-port=8001",
        "--kv-events-port=8002",
        "--drain-seconds=600.0",
    ]


@pytest.mark.parametrize("rate", ["0.001", "1"])
def test_the_engine_takes_every_share_of_pages_that_the_operator_lets_through(rate: str) -> None:
    options = engine_reads(a_service(engine={"kvCache": {"missRatioCurve": {"sampleRate": rate}}}))
    assert engine_config(options).cache.mrc_sample_rate == float(rate)


@pytest.mark.parametrize("policy", ["LeastLoad", "RoundRobin"])
def test_an_engine_publishes_its_blocks_only_where_prefixes_decide(policy: str) -> None:
    assert engine_reads(a_service(routing={"policy": policy})).kv_events_port is None
    assert engine_reads(a_service(routing={"policy": "PrefixAffinity"})).kv_events_port == 8002


def test_what_else_is_said_of_routing_is_no_matter_of_the_engine() -> None:
    routing = {"hotPrefixReplicas": {"min": 2}, "queue": {"maxWait": "1m"}}
    assert engine_reads(a_service(routing=routing)) == engine_reads(a_service())
    tenancy = {"authentication": "ApiKey", "cacheSharing": "Group"}
    shared = launch.args(read(a_service(tenancy=tenancy)), WITH_SECRET)
    assert shared == launch.args(read(a_service(tenancy={"authentication": "ApiKey"})), WITH_SECRET)


def test_an_engine_of_a_service_with_keys_knows_the_gateway_by_its_credential() -> None:
    tenancy = {"authentication": "ApiKey"}
    asked = "--gateway-credential-file=/etc/sapwood/gateway-credential"
    assert asked in launch.args(read(a_service(tenancy=tenancy)), WITH_SECRET)
    assert asked not in launch.args(read(a_service()), WITH_SECRET)
    assert asked not in launch.args(read(a_service(tenancy=tenancy)), SETTINGS)


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ({"builtin": "smollm2-135m"}, "builtin:smollm2-135m"),
        ({"huggingFace": {"repo": "owner/name"}}, "owner/name"),
        ({"pvc": {"claimName": "weights"}}, "/models"),
        ({"pvc": {"claimName": "weights", "path": "llama.gguf"}}, "/models/llama.gguf"),
        ({"path": "/opt/model"}, "/opt/model"),
    ],
    ids=["builtin", "hub", "claim", "file in a claim", "path"],
)
def test_every_source_becomes_the_model_that_the_engine_opens(source: dict[str, Any], model: str) -> None:
    assert engine_reads(a_service(model={"source": source})).model == model


@pytest.mark.parametrize("policy", SCHEDULERS)
def test_every_scheduler_of_the_schema_is_one_of_the_engine(policy: str) -> None:
    assert engine_reads(a_service(engine={"scheduler": {"policy": policy}})).scheduler_policy == SCHEDULERS[policy]


@pytest.mark.parametrize("policy", EVICTIONS)
def test_every_eviction_policy_of_the_schema_is_one_of_the_engine(policy: str) -> None:
    engine = {"kvCache": {"radix": {"evictionPolicy": policy}}}
    assert engine_reads(a_service(engine=engine)).eviction_policy == EVICTIONS[policy]


@pytest.mark.parametrize(("asked", "backend"), [*ATTENTION.items(), ("FlashInfer", "auto"), ("Triton", "auto")])
def test_an_attention_that_is_not_built_falls_back_to_the_fastest(asked: str, backend: str) -> None:
    assert engine_reads(a_service(engine={"attentionBackend": asked})).attention_backend == backend


@pytest.mark.parametrize(
    "argument",
    [
        "--port=9",
        "--api-key-file=/x",
        "--admin-key-file=/x",
        "--gateway-credential-file=/x",
        "--kv-events-port=9",
        "--model=other",
        "--host=::",
        "--page-size=8",
    ],
)
def test_an_extra_argument_that_the_operator_relies_on_is_refused(argument: str) -> None:
    with pytest.raises(InvalidSpec, match=r"spec.engine.extraArgs\[1\]: .* remove it"):
        launch.args(read(a_service(engine={"extraArgs": ["--seed=1", argument]})), SETTINGS)


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("--sed=1", "unrecognized arguments: --sed=1"),
        ("--seed=one", "argument --seed: invalid int value: 'one'"),
        ("--help", "unrecognized arguments: --help"),
        ("serve", "unrecognized arguments: serve"),
    ],
)
def test_an_extra_argument_that_the_engine_would_refuse_is_refused_in_its_words(argument: str, problem: str) -> None:
    with pytest.raises(InvalidSpec, match=r"spec.engine.extraArgs: ") as refused:
        launch.args(read(a_service(engine={"extraArgs": [argument]})), SETTINGS)
    assert problem in str(refused.value)


def test_every_rendered_option_is_one_of_the_engine() -> None:
    assert set(launch.RENDERED_OPTIONS) <= set(contract.HINTS)
