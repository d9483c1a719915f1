"""Whether an object needs a write."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sapwood_operator.domain.diff import differs, with_hash
from sapwood_operator.domain.names import APPLIED_ANNOTATION

DESIRED = with_hash(
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "labels": {"a": "b"}, "ownerReferences": [{"uid": "owner", "controller": True}]},
        "spec": {
            "replicas": 2,
            "template": {
                "spec": {
                    "automountServiceAccountToken": False,
                    "hostNetwork": False,
                    "tolerations": [],
                    "containers": [
                        {
                            "name": "engine",
                            "args": ["serve", "--port=1"],
                            "env": [{"name": "A", "value": "1"}],
                            "ports": [{"containerPort": 8000}],
                            "resources": {"limits": {"cpu": "0.5", "memory": "1024Mi"}},
                            "securityContext": {"allowPrivilegeEscalation": False},
                        }
                    ],
                    "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1024Mi"}}],
                }
            },
        },
    }
)


def live() -> dict[str, Any]:
    """The object as the API server gives it back."""
    kept = copy.deepcopy(DESIRED)
    pod = kept["spec"]["template"]["spec"]
    del pod["hostNetwork"], pod["tolerations"]
    pod["dnsPolicy"] = "ClusterFirst"
    pod["volumes"][0]["emptyDir"] = {"sizeLimit": "1Gi"}
    container = pod["containers"][0]
    container["ports"][0]["protocol"] = "TCP"
    container["resources"]["limits"] = {"cpu": "500m", "memory": "1Gi"}
    kept["metadata"] |= {"uid": "u", "generation": 3, "managedFields": []}
    kept["status"] = {"replicas": 2}
    return kept


def pod_of(document: dict[str, Any]) -> Any:
    return document["spec"]["template"]["spec"]


def test_an_object_as_the_api_server_gives_it_back_needs_no_write() -> None:
    assert not differs(DESIRED, live())


def test_what_others_add_is_left_to_them() -> None:
    changed = live()
    changed["metadata"]["labels"]["injected"] = "yes"
    changed["metadata"]["ownerReferences"].insert(0, {"uid": "another"})
    changed["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "3"
    pod_of(changed)["containers"].insert(0, {"name": "injected", "image": "x"})
    pod_of(changed)["containers"][1]["env"].append({"name": "INJECTED", "value": "x"})
    assert not differs(DESIRED, changed)


def changed_replicas(d: dict[str, Any]) -> None:
    d["spec"]["replicas"] = 5


def removed_container(d: dict[str, Any]) -> None:
    pod_of(d)["containers"] = []


def edited_argument(d: dict[str, Any]) -> None:
    pod_of(d)["containers"][0]["args"] = ["serve", "--port=2"]


def added_argument(d: dict[str, Any]) -> None:
    pod_of(d)["containers"][0]["args"].append("--x=1")


def edited_variable(d: dict[str, Any]) -> None:
    pod_of(d)["containers"][0]["env"][0]["value"] = "2"


def edited_memory(d: dict[str, Any]) -> None:
    pod_of(d)["containers"][0]["resources"]["limits"]["memory"] = "2Gi"


def removed_label(d: dict[str, Any]) -> None:
    del d["metadata"]["labels"]["a"]


def mounted_token(d: dict[str, Any]) -> None:
    del pod_of(d)["automountServiceAccountToken"]


def allowed_escalation(d: dict[str, Any]) -> None:
    del pod_of(d)["containers"][0]["securityContext"]["allowPrivilegeEscalation"]


def switched_to_host_network(d: dict[str, Any]) -> None:
    pod_of(d)["hostNetwork"] = True


def lost_owner(d: dict[str, Any]) -> None:
    d["metadata"]["ownerReferences"] = [{"uid": "another"}]


def lost_hash(d: dict[str, Any]) -> None:
    del d["metadata"]["annotations"][APPLIED_ANNOTATION]


@pytest.mark.parametrize(
    "edit",
    [
        changed_replicas,
        removed_container,
        edited_argument,
        added_argument,
        edited_variable,
        edited_memory,
        removed_label,
        mounted_token,
        allowed_escalation,
        switched_to_host_network,
        lost_owner,
        lost_hash,
    ],
    ids=lambda edit: edit.__name__,
)
def test_an_edit_by_hand_needs_a_write(edit: Any) -> None:
    changed = live()
    edit(changed)
    assert differs(DESIRED, changed)


def test_a_field_that_is_no_longer_desired_needs_a_write_although_it_is_still_there() -> None:
    wanted = copy.deepcopy(DESIRED)
    del wanted["metadata"]["annotations"]
    del pod_of(wanted)["containers"][0]["env"]
    assert differs(with_hash(wanted), live())


def test_what_the_api_server_itself_answered_needs_no_write_and_an_edit_of_it_does() -> None:
    answer = live()
    pod_of(answer)["containers"][0]["env"][0]["value"] = "made of it"
    pod_of(answer)["volumes"] = []
    assert differs(DESIRED, answer)
    assert not differs(DESIRED, answer, answer)
    edited = copy.deepcopy(answer)
    edited["spec"]["replicas"] = 5
    assert differs(DESIRED, edited, answer)
    edited = copy.deepcopy(answer)
    pod_of(edited)["containers"][0]["env"][0]["value"] = "edited"
    assert differs(DESIRED, edited, answer)


def test_an_answer_to_an_older_write_says_nothing() -> None:
    answer = live()
    answer["metadata"]["annotations"][APPLIED_ANNOTATION] = "older"
    assert differs(DESIRED, answer, answer)


def test_the_hash_depends_on_values_and_not_on_the_order_of_fields() -> None:
    one = with_hash({"metadata": {"name": "x"}, "data": {"a": 1, "b": 2}})
    other = with_hash({"data": {"b": 2, "a": 1}, "metadata": {"name": "x"}})
    assert one == other
    assert one != with_hash({"metadata": {"name": "x"}, "data": {"a": 1, "b": 3}})


def test_lists_without_a_key_are_compared_in_order() -> None:
    desired = {"spec": {"ingress": [{"from": [{"a": 1}]}, {"from": [{"b": 2}]}]}}
    assert not differs(desired, {"spec": {"ingress": [{"from": [{"a": 1}]}, {"from": [{"b": 2}]}]}})
    assert differs(desired, {"spec": {"ingress": [{"from": [{"b": 2}]}, {"from": [{"a": 1}]}]}})
    assert differs(desired, {"spec": {"ingress": [{"from": [{"a": 1}]}]}})


def test_ports_of_a_service_are_found_by_number() -> None:
    desired = {"spec": {"ports": [{"port": 80, "targetPort": "http"}]}}
    assert not differs(desired, {"spec": {"ports": [{"port": 9}, {"port": 80, "targetPort": "http", "nodePort": 1}]}})
