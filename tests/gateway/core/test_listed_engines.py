"""Routes of engines that are given by address."""

from __future__ import annotations

from sapwood_gateway.core.listed_engines import ListedEngine, QueueLimits, routes_of
from sapwood_gateway.core.routes import Replica, ServiceKey


def replica(id_: str) -> Replica:
    return Replica(id=id_, name=id_, url=f"http://{id_}:8000", admin_url=f"http://{id_}:8001")


def test_engines_of_one_model_are_one_service() -> None:
    routes = routes_of(
        [ListedEngine(replica(id_), model, is_ready=True) for id_, model in ("am", "bn", "cm")], "LeastLoad"
    )
    found = {key.name: [each.id for each in replicas] for key, replicas in routes.replicas.items()}
    assert found == {"m": ["a", "c"], "n": ["b"]}
    assert {service.models for service in routes.services.values()} == {("m",), ("n",)}


def test_an_engine_that_is_not_ready_keeps_its_service_known() -> None:
    routes = routes_of([ListedEngine(replica("a"), "m", is_ready=False)], "LeastLoad")
    (only,) = routes.of(ServiceKey("static", "m"))
    assert not only.is_ready


def test_an_engine_that_never_said_its_model_is_in_no_service() -> None:
    assert routes_of([ListedEngine(replica("a"))], "LeastLoad").services == {}


def test_every_service_is_routed_by_the_policy_of_the_list() -> None:
    routes = routes_of([ListedEngine(replica("a"), "m"), ListedEngine(replica("b"), "n")], "PrefixAffinity")
    assert {service.policy for service in routes.services.values()} == {"PrefixAffinity"}


def test_every_service_lets_as_many_requests_wait_as_the_list_says() -> None:
    routes = routes_of([ListedEngine(replica("a"), "m")], "LeastLoad", queue=QueueLimits(7, 2.0))
    (only,) = routes.services.values()
    assert (only.queue_max_requests, only.queue_max_wait_seconds) == (7, 2.0)
