"""Fields that nothing acts on are named, and only those."""

from __future__ import annotations

from typing import Any

import pytest
from support_operator import a_service

from sapwood_operator.domain.unsupported import NOT_BUILT, unsupported_fields

ASKED: dict[str, dict[str, Any]] = {
    "spec.model.source.s3": {"model": {"source": {"s3": {"bucket": "b"}}}},
    "spec.engine.device": {"engine": {"device": "CUDA"}},
    "spec.engine.parallelism.tensor": {"engine": {"parallelism": {"tensor": 2}}},
    "spec.engine.parallelism.data": {"engine": {"parallelism": {"data": 2}}},
    "spec.engine.kvCache.dtype": {"engine": {"kvCache": {"dtype": "Int8"}}},
    "spec.engine.kvCache.host": {"engine": {"kvCache": {"host": {"size": "1Gi"}}}},
    "spec.engine.kvCache.shared": {"engine": {"kvCache": {"shared": {"backend": "Redis"}}}},
    "spec.engine.attentionBackend": {"engine": {"attentionBackend": "Triton"}},
    "spec.engine.speculative": {"engine": {"speculative": {"method": "NGram"}}},
    "spec.engine.lora": {"engine": {"lora": {"enabled": True}}},
    "spec.engine.grammarBackend": {"engine": {"grammarBackend": "XGrammar"}},
    "spec.resources.limits[nvidia.com/gpu]": {"resources": {"limits": {"nvidia.com/gpu": "1"}}},
    "spec.exposure.inferencePool": {"exposure": {"inferencePool": {"create": True}}},
    "spec.observability.dashboards": {"observability": {"dashboards": True}},
}


def test_every_field_that_is_not_built_has_an_example_here() -> None:
    assert [f"spec.{path}" for path, _ in NOT_BUILT] == list(ASKED)


@pytest.mark.parametrize("path", ASKED)
def test_a_field_that_is_not_built_is_named_where_it_asks_for_something(path: str) -> None:
    assert unsupported_fields(a_service(**ASKED[path])) == (path,)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"engine": {"device": "Auto", "attentionBackend": "CPU", "parallelism": {"tensor": 1, "data": 1}}},
        {"engine": {"lora": {"enabled": False}, "kvCache": {"missRatioCurve": {}, "dtype": "Auto"}}},
        {"resources": {"limits": {"cpu": "2", "nvidia.com/gpu": "0"}}},
        {"routing": {"policy": "PrefixAffinity", "queue": {}}, "tenancy": {"authentication": "ApiKey"}},
        {"exposure": {"inferencePool": {"create": False}}},
        {"autoscaling": {"maxReplicas": 2}},
        {"observability": {"alerts": True, "dashboards": False, "tracing": {"endpoint": "http://otel:4318"}}},
        {"engine": None, "routing": "nonsense"},
    ],
    ids=["nothing", "engine", "switched off", "no GPU", "routing", "outside", "scaled", "watched", "nonsense"],
)
def test_a_field_that_asks_for_nothing_new_is_not_named(fields: dict[str, Any]) -> None:
    assert unsupported_fields(a_service(**fields)) == ()
