"""The store: newer versions win, whatever order watches, lists and answers to writes come in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_contract.routing import SERVICE_LABEL
from sapwood_operator.adapters.kinds import BY_NAME, PODS, POLICIES, REPLICA_SETS, SERVICES, TENANTS, Kind
from sapwood_operator.domain.observed import ref_of
from sapwood_operator.handlers.store import PoliciesKey, ServiceKey, Store, TenantsKey

DEPLOYMENTS = BY_NAME["apps/v1", "Deployment"]
CHAT = ServiceKey("team", "chat")


def an_object(
    kind: Kind, name: str, version: int, *, namespace: str = "team", service: str = "chat", **more: Any
) -> dict[str, Any]:
    labels = {} if kind is SERVICES or not service else {SERVICE_LABEL: service}
    about: dict[str, Any] = {"namespace": namespace, "name": name, "resourceVersion": str(version), "labels": labels}
    if kind is REPLICA_SETS:
        about["uid"] = "uid-of-replicas"
    if kind is PODS:
        about["ownerReferences"] = [{"uid": "uid-of-replicas", "controller": True}]
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": about, **more}


def test_a_service_is_found_with_what_bears_its_label() -> None:
    store = Store()
    service, pod = an_object(SERVICES, "chat", 1), an_object(PODS, "chat-engine-x", 4)
    replica_set, deployment = an_object(REPLICA_SETS, "chat-engine-1", 3), an_object(DEPLOYMENTS, "chat-engine", 2)
    for live in (service, pod, replica_set, deployment, an_object(PODS, "other", 9, service="other")):
        store.put(live)
    assert store.keys() == [CHAT]
    assert store.service(CHAT) == service
    assert store.pods(CHAT) == (pod,)
    assert store.replica_sets(CHAT) == (replica_set,)
    assert store.children(CHAT) == {ref_of(deployment): deployment}


@pytest.mark.parametrize("owners", [[], [{"uid": "uid-of-another", "controller": True}], [{"uid": "uid-of-replicas"}]])
def test_a_pod_that_only_bears_the_label_is_none_of_the_replicas(owners: list[dict[str, Any]]) -> None:
    store = Store()
    store.put(an_object(REPLICA_SETS, "chat-engine-1", 1))
    stranger = an_object(PODS, "debugging", 2)
    stranger["metadata"]["ownerReferences"] = owners
    store.put(stranger)
    assert store.pods(CHAT) == ()


def test_tenants_are_known_by_their_namespace_and_apart_from_services() -> None:
    store = Store()
    team = TenantsKey("team")
    first, second = an_object(TENANTS, "b", 1, service=""), an_object(TENANTS, "a", 2, service="")
    assert [store.put(live) for live in (first, second)] == [{team}, {team}]
    store.put(an_object(SERVICES, "chat", 3))
    assert store.tenants(team) == (second, first)
    assert set(store.keys()) == {team, CHAT}
    assert store.replace(TENANTS, "", [second], "9") == {team}
    assert store.tenants(team) == (second,)
    assert store.children(CHAT) == {}


def following(policy: str, version: int, name: str = "chat") -> dict[str, Any]:
    return an_object(SERVICES, name, version, spec={"autoscaling": {"policyRef": {"name": policy}}})


def test_a_policy_wakes_the_services_that_name_it_and_no_others() -> None:
    store, policies = Store(), PoliciesKey("team")
    store.put(following("day", 1))
    store.put(following("night", 2, "other"))
    store.put(an_object(SERVICES, "fixed", 3, spec={"replicas": 2}))
    day = an_object(POLICIES, "day", 4, service="")
    assert store.put(day) == {policies, CHAT}
    assert store.policies("team") == {"day": day}
    assert store.policies("elsewhere") == {}
    assert set(store.keys()) >= {policies, CHAT}
    assert store.remove(an_object(POLICIES, "day", 5, service="")) == {policies, CHAT}
    assert store.policies("team") == {}


def test_a_service_wakes_the_policies_when_it_begins_or_ends_to_name_one() -> None:
    store, policies = Store(), PoliciesKey("team")
    assert store.put(an_object(SERVICES, "chat", 1, spec={})) == {CHAT}
    assert store.put(following("day", 2)) == {CHAT, policies}
    assert [each["metadata"]["name"] for each in store.services("team")] == ["chat"]
    assert store.put(an_object(SERVICES, "chat", 3, spec={})) == {CHAT, policies}
    assert store.put(an_object(SERVICES, "chat", 4, spec={})) == {CHAT}


def test_the_same_name_in_another_namespace_is_another_service() -> None:
    store = Store()
    store.put(an_object(SERVICES, "chat", 1))
    store.put(an_object(DEPLOYMENTS, "chat-engine", 2, namespace="elsewhere"))
    assert store.children(CHAT) == {}


def test_an_object_that_is_new_or_newer_wakes_its_service_and_an_echo_does_not() -> None:
    store = Store()
    assert store.put(an_object(DEPLOYMENTS, "chat-engine", 2)) == {CHAT}
    assert store.put(an_object(DEPLOYMENTS, "chat-engine", 2)) == set()
    assert store.put(an_object(DEPLOYMENTS, "chat-engine", 3)) == {CHAT}


def test_versions_are_numbers_not_text() -> None:
    store = Store()
    store.put(an_object(DEPLOYMENTS, "chat-engine", 9))
    assert store.put(an_object(DEPLOYMENTS, "chat-engine", 10)) == {CHAT}


def test_an_object_that_changes_its_label_wakes_both_services() -> None:
    store = Store()
    store.put(an_object(DEPLOYMENTS, "chat-engine", 2))
    changed = store.put(an_object(DEPLOYMENTS, "chat-engine", 3, service="other"))
    assert changed == {CHAT, ServiceKey("team", "other")}
    assert store.children(CHAT) == {}


def test_what_was_deleted_does_not_come_back_by_an_older_answer() -> None:
    store = Store()
    store.remove(an_object(DEPLOYMENTS, "chat-engine", 7))
    assert store.put(an_object(DEPLOYMENTS, "chat-engine", 5)) == set()
    assert store.children(CHAT) == {}


def test_what_is_created_anew_after_a_deletion_is_taken_in() -> None:
    store = Store()
    store.put(an_object(DEPLOYMENTS, "chat-engine", 5))
    assert store.remove(an_object(DEPLOYMENTS, "chat-engine", 7)) == {CHAT}
    assert store.put(an_object(DEPLOYMENTS, "chat-engine", 8)) == {CHAT}


def test_a_late_word_of_a_deletion_does_not_remove_the_object_that_was_created_since() -> None:
    store = Store()
    store.put(an_object(DEPLOYMENTS, "chat-engine", 8))
    assert store.remove(an_object(DEPLOYMENTS, "chat-engine", 7)) == set()
    assert len(store.children(CHAT)) == 1


def test_a_listing_removes_what_no_event_told_and_wakes_the_service() -> None:
    store = Store()
    store.put(an_object(DEPLOYMENTS, "chat-engine", 5))
    assert store.replace(DEPLOYMENTS, "", [], "9") == {CHAT}
    assert store.children(CHAT) == {}


def test_a_listing_leaves_what_is_newer_than_itself() -> None:
    store = Store()
    store.put(an_object(DEPLOYMENTS, "chat-engine", 12))
    assert store.replace(DEPLOYMENTS, "", [], "9") == set()
    assert len(store.children(CHAT)) == 1


def test_a_listing_speaks_for_its_kind_and_namespace_alone() -> None:
    store = Store()
    store.put(an_object(DEPLOYMENTS, "chat-engine", 5))
    store.put(an_object(PODS, "chat-engine-x", 5))
    assert store.replace(DEPLOYMENTS, "elsewhere", [], "9") == set()
    assert store.replace(PODS, "team", [], "9") == {CHAT}
    assert len(store.children(CHAT)) == 1


def test_an_object_without_the_label_is_nobodys() -> None:
    store = Store()
    assert store.put(an_object(DEPLOYMENTS, "web", 5, service="")) == set()


def test_bookkeeping_of_field_managers_is_not_kept() -> None:
    live = an_object(DEPLOYMENTS, "chat-engine", 5)
    live["metadata"]["managedFields"] = [{"manager": "someone"}]
    store = Store()
    store.put(live)
    assert "managedFields" not in store.children(CHAT)[ref_of(live)]["metadata"]


@given(st.permutations(range(6)), st.integers(0, 5))
def test_in_whatever_order_events_come_the_last_one_holds(order: list[int], deleted: int) -> None:
    """Six events of one object, one of them its deletion, a version each."""
    store = Store()
    for index in order:
        live = an_object(DEPLOYMENTS, "chat-engine", 10 + index, index=index)
        if index == deleted:
            store.remove(live)
        else:
            store.put(live)
    left = [live["index"] for live in store.children(CHAT).values()]
    assert left == ([] if deleted == 5 else [5])


@pytest.mark.parametrize("kind", [SERVICES, PODS, DEPLOYMENTS], ids=lambda kind: kind.kind)
def test_nothing_is_left_of_what_is_gone(kind: Kind) -> None:
    store = Store()
    store.put(an_object(kind, "chat", 5))
    store.remove(an_object(kind, "chat", 6))
    assert store.keys() == []
    assert store.service(CHAT) is None
    assert (store.pods(CHAT), store.children(CHAT)) == ((), {})
