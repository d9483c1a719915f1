"""From ConfigMaps and EndpointSlices to routes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sapwood_contract.routing import ServiceRoute, to_json
from sapwood_gateway.core.cluster_facts import routes_of
from sapwood_gateway.core.routes import Replica, ServiceKey

CHAT = ServiceKey("team", "chat")
ROUTE = ServiceRoute(
    namespace="team",
    service="chat",
    models=("llama",),
    engine_service="chat-engine",
    policy="RoundRobin",
    hosts=("Chat.Example.com",),
)

IPV4, IPV6 = "10.1.0.5", "fd00::5"

Json = dict[str, Any]


def config_map(route: ServiceRoute = ROUTE, *, namespace: str = "team") -> Json:
    return {
        "metadata": {"namespace": namespace, "name": f"{route.service}-routing"},
        "data": {"service.json": to_json(route)},
    }


def endpoint_slice(*endpoints: Json, name: str = "s1", service: str = "chat-engine", family: str = "IPv4") -> Json:
    return {
        "metadata": {"namespace": "team", "name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": family,
        "endpoints": list(endpoints),
    }


def endpoint(pod: str, *addresses: str, **conditions: bool | None) -> Json:
    return {
        "addresses": list(addresses),
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": pod, "uid": f"uid-{pod}"},
    }


def replicas(*slices: Json) -> tuple[Replica, ...]:
    facts = routes_of([config_map()], slices)
    assert facts.problems == ()
    return facts.routes.of(CHAT)


def test_a_ready_endpoint_is_a_replica_at_the_ports_of_the_route() -> None:
    (replica,) = replicas(endpoint_slice(endpoint("p1", IPV4, ready=True, serving=True, terminating=False)))
    assert replica == Replica("team/chat/uid-p1", "p1", f"http://{IPV4}:8000", f"http://{IPV4}:8001")


def test_a_service_without_endpoints_is_known_all_the_same() -> None:
    routes = routes_of([config_map()], []).routes
    service = routes.services[CHAT]
    assert (service.models, service.policy, service.hosts) == (("llama",), "RoundRobin", ("chat.example.com",))
    assert routes.of(CHAT) == ()


@pytest.mark.parametrize(
    ("conditions", "is_ready", "is_terminating"),
    [
        ({}, True, False),  # absent means ready, says the API
        ({"ready": None}, True, False),
        ({"ready": False, "serving": False, "terminating": False}, False, False),
        ({"ready": False, "serving": True, "terminating": True}, False, True),
        ({"ready": True, "terminating": True}, True, True),
    ],
)
def test_conditions_are_read_as_the_api_means_them(
    conditions: dict[str, bool | None], is_ready: bool, is_terminating: bool
) -> None:
    (replica,) = replicas(endpoint_slice(endpoint("p1", IPV4, **conditions)))
    assert (replica.is_ready, replica.is_terminating) == (is_ready, is_terminating)


def test_an_endpoint_that_lost_its_address_is_no_replica() -> None:
    assert replicas(endpoint_slice(endpoint("p1", ready=True), {"addresses": None})) == ()
    assert replicas({**endpoint_slice(), "endpoints": None}) == ()


def test_a_pod_in_two_slices_is_one_replica_and_the_worse_news_holds() -> None:
    old = endpoint_slice(endpoint("p1", IPV4, ready=True), name="s1")
    new = endpoint_slice(endpoint("p1", IPV4, ready=False, terminating=True), name="s2")
    assert replicas(old, new) == replicas(new, old)
    (replica,) = replicas(old, new)
    assert (replica.is_ready, replica.is_terminating) == (False, True)


def test_a_pod_with_an_address_of_each_family_is_one_replica() -> None:
    slices = [
        endpoint_slice(endpoint("p1", IPV6, ready=True), name="s1", family="IPv6"),
        endpoint_slice(endpoint("p1", IPV4, ready=True), name="s2"),
    ]
    (replica,) = replicas(*slices)
    assert replica.url == f"http://{IPV4}:8000"
    (alone,) = replicas(slices[0])
    assert alone.url == f"http://[{IPV6}]:8000"


def test_an_address_that_a_new_pod_takes_over_is_another_replica() -> None:
    (before,) = replicas(endpoint_slice(endpoint("p1", IPV4, ready=True)))
    (after,) = replicas(endpoint_slice(endpoint("p2", IPV4, ready=True)))
    assert (before.url, before.id) != (after.url, after.id)
    assert before.url == after.url


def test_slices_of_other_services_and_namespaces_do_not_matter() -> None:
    elsewhere = endpoint_slice(endpoint("p1", IPV4, ready=True))
    elsewhere["metadata"]["namespace"] = "lab"
    assert replicas(endpoint_slice(endpoint("p2", "10.1.0.6"), service="code-engine"), elsewhere) == ()


@pytest.mark.parametrize("uid", ["uid-p1", None])
def test_who_names_the_pod_of_another_namespace_in_a_slice_has_a_replica_of_its_own(uid: str | None) -> None:
    ours = endpoint_slice({**endpoint("p1", IPV4), "targetRef": {"uid": uid}})
    evil = {**ours, "metadata": {**ours["metadata"], "namespace": "evil"}}
    theirs = config_map(dataclasses.replace(ROUTE, namespace="evil"), namespace="evil")
    routes = routes_of([config_map(), theirs], [ours, evil]).routes
    ids = [replica.id for replica in routes.all_replicas()]
    assert len(set(ids)) == 2
    assert routes.of(CHAT) == replicas(ours)


def test_a_config_map_that_cannot_be_read_is_passed_over_and_said() -> None:
    broken = {"metadata": {"namespace": "team", "name": "b"}, "data": {"service.json": "{"}}
    empty = {"metadata": {"namespace": "team", "name": "c"}}
    facts = routes_of([broken, empty, config_map()], [])
    assert set(facts.routes.services) == {CHAT}
    assert [problem.split(" is passed over")[0] for problem in facts.problems] == [
        "ConfigMap team/b",
        "ConfigMap team/c",
    ]


@pytest.mark.parametrize("data", [{"service.json": "[" * 100_000}, {"service.json": {}}, "text", ["list"]])
def test_no_config_map_keeps_the_others_from_being_read(data: object) -> None:
    facts = routes_of([{"metadata": {"namespace": "team", "name": "a"}, "data": data}, config_map()], [])
    assert set(facts.routes.services) == {CHAT}
    assert [problem.split(" is passed over")[0] for problem in facts.problems] == ["ConfigMap team/a"]


def test_a_config_map_may_speak_of_its_own_namespace_only() -> None:
    facts = routes_of([config_map(namespace="intruder")], [])
    assert facts.routes.services == {}
    assert "is not the ConfigMap's own" in facts.problems[0]


def test_the_route_names_the_pods_that_are_cordoned_and_a_new_one_of_that_name_is_another_replica() -> None:
    route = dataclasses.replace(ROUTE, cordoned=("p1", "gone"))
    pods = endpoint_slice(endpoint("p1", IPV4), endpoint("p2", "10.1.0.6"))
    found = routes_of([config_map(route)], [pods]).routes.of(CHAT)
    assert [(each.name, each.is_cordoned) for each in found] == [("p1", True), ("p2", False)]
    again = endpoint("p2", "10.1.0.6")
    again["targetRef"]["uid"] = "another"
    (_, before), (after, _) = (
        found,
        routes_of([config_map(route)], [endpoint_slice(endpoint("p1", IPV4), again)]).routes.of(CHAT),
    )
    assert (after.name, after.url) == (before.name, before.url)
    assert after.id != before.id


def test_a_cordoned_pod_in_two_slices_is_cordoned() -> None:
    route = dataclasses.replace(ROUTE, cordoned=("p1",))
    slices = [endpoint_slice(endpoint("p1", IPV4), name="s1"), endpoint_slice(endpoint("p1", IPV6), name="s2")]
    (replica,) = routes_of([config_map(route)], slices).routes.of(CHAT)
    assert replica.is_cordoned


def own_ports(http: int, admin: int, *endpoints: Json, name: str) -> Json:
    ports = [{"name": "http", "port": http}, {"name": "admin", "port": admin}, {"name": "other", "port": 1}]
    return {**endpoint_slice(*endpoints, name=name), "ports": ports}


def test_ports_of_a_slice_come_before_those_of_the_route() -> None:
    (first, second) = replicas(
        own_ports(9000, 9001, endpoint("p1", "127.0.0.1"), name="s1"),
        own_ports(9100, 9101, endpoint("p2", "127.0.0.1"), name="s2"),
    )
    assert (first.url, first.admin_url) == ("http://127.0.0.1:9000", "http://127.0.0.1:9001")
    assert (second.url, second.admin_url) == ("http://127.0.0.1:9100", "http://127.0.0.1:9101")


def test_two_endpoints_without_pods_on_one_address_are_two_replicas_by_their_ports() -> None:
    found = replicas(
        own_ports(9000, 9001, {"addresses": ["127.0.0.1"]}, name="s1"),
        own_ports(9100, 9101, {"addresses": ["127.0.0.1"]}, name="s2"),
    )
    assert [each.id for each in found] == ["team/chat/127.0.0.1:9000", "team/chat/127.0.0.1:9100"]


@pytest.mark.parametrize("ports", [None, [], [{"port": 9000}], [{"name": "http", "port": None}]])
def test_a_slice_that_names_no_port_has_those_of_the_route(ports: object) -> None:
    (replica,) = replicas({**endpoint_slice(endpoint("p1", IPV4)), "ports": ports})
    assert (replica.url, replica.admin_url) == (f"http://{IPV4}:8000", f"http://{IPV4}:8001")
