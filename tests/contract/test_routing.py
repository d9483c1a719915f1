"""What the operator writes for the gateway is what the gateway reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_contract import routing
from sapwood_contract.routing import InvalidRoute, ServiceRoute

NAMES = st.text(min_size=1)
PORTS = st.integers(1, 65_535)
ROUTES = st.builds(
    ServiceRoute,
    namespace=NAMES,
    service=NAMES,
    models=st.lists(NAMES, min_size=1, max_size=4).map(tuple),
    engine_service=NAMES,
    port=PORTS,
    admin_port=PORTS,
    policy=st.sampled_from(routing.POLICIES),
    hosts=st.lists(NAMES, max_size=3).map(tuple),
)

CHAT = ServiceRoute(namespace="default", service="chat", models=("smollm2",), engine_service="chat-engine")


@given(ROUTES)
def test_a_route_written_as_json_is_read_back_the_same(route: ServiceRoute) -> None:
    assert routing.from_json(routing.to_json(route)) == route


def test_a_field_that_an_older_gateway_does_not_know_is_passed_over() -> None:
    document = json.loads(routing.to_json(CHAT)) | {"tomorrow": {"weights": [1, 2]}}
    assert routing.from_json(json.dumps(document)) == CHAT


def test_a_field_that_an_older_operator_did_not_write_has_its_default() -> None:
    document = json.loads(routing.to_json(CHAT))
    for name in ("port", "admin_port", "policy", "hosts"):
        del document[name]
    assert routing.from_json(json.dumps(document)) == CHAT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"service": ""}, "service: '' is not a name"),
        ({"namespace": 7}, "namespace: 7 is not a name"),
        ({"port": 0}, "port: 0 is not a port"),
        ({"admin_port": "8001"}, "admin_port: '8001' is not a port"),
        ({"port": True}, "port: True is not a port"),
        ({"models": []}, "models: a service answers to one name at least"),
        ({"models": "smollm2"}, "models: 'smollm2' is not a list"),
        ({"models": [1]}, "models: .* is not a name"),
        ({"policy": "Fastest"}, "policy: 'Fastest' is not one of LeastLoad, RoundRobin"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_wrong_value_is_refused_and_named(change: dict[str, Any], message: str) -> None:
    document = json.loads(routing.to_json(CHAT)) | change
    with pytest.raises(InvalidRoute, match=message):
        routing.from_json(json.dumps(document))


@pytest.mark.parametrize("name", ["namespace", "service", "models", "engine_service"])
def test_a_missing_field_is_named(name: str) -> None:
    document = json.loads(routing.to_json(CHAT))
    del document[name]
    with pytest.raises(InvalidRoute, match=f"{name}: missing"):
        routing.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"chat"', "9" * 5_000, "[" * 100_000, '{"a":' * 100_000])
def test_text_that_is_no_route_is_refused(text: str) -> None:
    with pytest.raises(InvalidRoute):
        routing.from_json(text)


@pytest.mark.parametrize("name", ["models", "port", "policy"])
@pytest.mark.parametrize("value", ["[" * 900 + "]" * 900, '"' + "x" * 100_000 + '"'], ids=["deep", "long"])
def test_a_wrong_value_of_any_size_is_quoted_in_short(name: str, value: str) -> None:
    document = json.dumps(json.loads(routing.to_json(CHAT)) | {name: None}).replace("null", value)
    with pytest.raises(InvalidRoute) as refused:
        routing.from_json(document)
    assert len(str(refused.value)) < 300
