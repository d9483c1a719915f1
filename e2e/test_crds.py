"""The definitions of ``crds/`` on a real API server: what it accepts, what it refuses, and what it says.

Objects are sent with ``dryRun=All``, which runs defaults, schema and CEL and stores nothing, but where storing is the
point. The rules' cases are those of `support_crd_cases`.
"""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from support_crd_cases import BOUNDS, CASES, Bound, Case, manifest
from support_crds import EXAMPLES, GROUP, Field, definitions, documents, fields

from sapwood_operator.domain.unsupported import unsupported_fields

VERSION = "v1alpha1"
SERVICE = "InferenceService"
NAMESPACE = f"crds-{uuid.uuid4().hex[:6]}"
PREFIXES = {
    "FieldValueInvalid": "Invalid value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueRequired": "Required value",
}
"""What the API server puts before a rule's message; the value too, where it is no object."""
_UNCHECKED = "some validation rules were not checked"
"""A remark of the API server where the schema refuses an object: it runs no rules then."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why an object was not accepted: the causes as (field, message)."""

    status: int
    message: str
    causes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects of our kinds in one namespace."""

    api: client.CustomObjectsApi
    namespace: str

    def create(self, body: Mapping[str, Any], *, dry: bool = True) -> dict[str, Any] | Refused:
        """Create, strictly: a field that the schema does not have is refused. Returns it with its defaults."""
        return self._ask(self.api.create_namespaced_custom_object, body["kind"], body=body, **self._strictly(dry=dry))

    def patch(self, body: Mapping[str, Any], *, part: str = "", dry: bool = False) -> dict[str, Any] | Refused:
        """Merge into the stored object, or into its subresource ``part``."""
        call = getattr(self.api, f"patch_namespaced_custom_object{part and '_'}{part}")
        return self._ask(call, body["kind"], name=body["metadata"]["name"], body=body, **self._strictly(dry=dry))

    def replace(self, body: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any] | Refused:
        """Try to put ``body`` where ``stored`` is."""
        metadata = {**body["metadata"], "resourceVersion": stored["metadata"]["resourceVersion"]}
        body = {**body, "metadata": metadata}
        call = self.api.replace_namespaced_custom_object
        return self._ask(call, body["kind"], name=metadata["name"], body=body, **self._strictly(dry=True))

    def delete(self, body: Mapping[str, Any]) -> None:
        self._ask(self.api.delete_namespaced_custom_object, body["kind"], name=body["metadata"]["name"])

    def _strictly(self, *, dry: bool) -> dict[str, str]:
        return {"field_validation": "Strict", **({"dry_run": "All"} if dry else {})}

    def _ask(self, call: Any, kind: str, **others: Any) -> dict[str, Any] | Refused:
        plural = definitions()[kind]["spec"]["names"]["plural"]
        try:
            answer: dict[str, Any] = call(GROUP, VERSION, self.namespace, plural, **others)
        except client.ApiException as error:
            status = json.loads(error.body or "{}")
            causes = [one for one in status.get("details", {}).get("causes", ()) if _UNCHECKED not in one["message"]]
            return Refused(
                int(error.status),
                status["message"],
                tuple((cause.get("field", ""), cause["message"]) for cause in causes),
            )
        return answer


Kubectl = Callable[..., str]


@pytest.fixture(scope="module")
def kubectl() -> Kubectl:
    """Run kubectl, and return what it says; a failure is a failed test with its stderr."""

    def run(*args: str) -> str:
        done = subprocess.run(["kubectl", *args], check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (args, done.stderr)
        return done.stdout

    return run


@pytest.fixture(scope="module")
def objects(kubectl: Kubectl) -> Iterator[Objects]:
    """The definitions are in force; objects go to a namespace of this file's own."""
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "crds")
    kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", "crds")
    kubectl("create", "namespace", NAMESPACE)
    config.load_kube_config()  # type: ignore[no-untyped-call]  # the client's configuration has no types
    yield Objects(client.CustomObjectsApi(), NAMESPACE)
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def stored(objects: Objects) -> Iterator[dict[str, Any]]:
    """A service that is really there, without ``replicas``, until the test ends."""
    made = objects.create(manifest(SERVICE, {"metadata.name": "stored"}), dry=False)
    assert isinstance(made, dict)
    yield made
    objects.delete(made)


@pytest.mark.usefixtures("objects")
def test_the_api_server_has_no_complaint_about_a_definition(kubectl: Kubectl) -> None:
    listed = json.loads(kubectl("get", "crd", "-o", "json"))["items"]
    ours = [one for one in listed if one["spec"]["group"] == GROUP]
    holding = {
        one["spec"]["names"]["kind"]: {
            condition["type"] for condition in one["status"]["conditions"] if condition["status"] == "True"
        }
        for one in ours
    }
    assert holding == {kind: {"NamesAccepted", "Established"} for kind in definitions()}


# Rules


ONE_OBJECT = [case for case in CASES if case.before is None]
CHANGES = [case for case in CASES if case.before is not None]


def is_refusal(refused: object, case: Case) -> bool:
    """Whether the rule of `case`, and nothing besides, refused it."""
    assert isinstance(refused, Refused)
    ((field, message),) = refused.causes
    said = rf'{PREFIXES[case.reason]}(: "[^"]*")?: {re.escape(case.message)}'
    return field == case.field and re.fullmatch(said, message) is not None


@pytest.mark.parametrize("case", ONE_OBJECT, ids=str)
def test_a_rule_accepts_one_object_and_refuses_another(objects: Objects, case: Case) -> None:
    accepted = objects.create(manifest(case.kind, case.accepted))
    refused = objects.create(manifest(case.kind, case.refused))
    assert isinstance(accepted, dict), accepted
    assert is_refusal(refused, case), refused


@pytest.mark.parametrize("case", CHANGES, ids=str)
def test_a_rule_accepts_one_change_and_refuses_another(objects: Objects, case: Case) -> None:
    before = objects.create(manifest(case.kind, case.before or {}), dry=False)
    assert isinstance(before, dict), before
    try:
        accepted = objects.replace(manifest(case.kind, case.accepted), before)
        refused = objects.replace(manifest(case.kind, case.refused), before)
    finally:
        objects.delete(before)
    assert isinstance(accepted, dict), accepted
    assert is_refusal(refused, case), refused


# The schema


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_the_schema_refuses_a_value_out_of_bounds(objects: Objects, bound: Bound) -> None:
    refused = objects.create(manifest(bound.kind, {bound.field: bound.value}))
    assert isinstance(refused, Refused)
    field, message = refused.causes[0]
    assert field == (bound.place or bound.field)
    assert bound.says in message


def test_a_misspelt_field_is_refused_by_name(objects: Objects) -> None:
    refused = objects.create(manifest(SERVICE, {"spec.replica": 2}))
    assert isinstance(refused, Refused)
    assert 'unknown field "spec.replica"' in refused.message


def test_a_pod_template_may_hold_what_the_schema_does_not_know(objects: Objects) -> None:
    pod = {"containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}]}], "$patch": "merge"}
    made = objects.create(manifest(SERVICE, {"spec.podTemplate.spec": pod}))
    assert isinstance(made, dict)
    assert made["spec"]["podTemplate"]["spec"] == pod


def test_the_defaults_of_the_smallest_service_ask_for_nothing_that_is_not_built(objects: Objects) -> None:
    made = objects.create(manifest(SERVICE, {}))
    assert isinstance(made, dict)
    assert not unsupported_fields(made)
    assert made["spec"]["rollout"] == {"maxSurge": 1, "maxUnavailable": 0, "drainTimeout": "600s"}


@pytest.mark.usefixtures("stored")
def test_spec_and_status_are_written_apart(objects: Objects) -> None:
    both = manifest(SERVICE, {"metadata.name": "stored", "spec.replicas": 3, "status": {"replicas": 2}})
    as_status, as_spec = objects.patch(both, part="status"), objects.patch(both)
    assert isinstance(as_status, dict)
    assert isinstance(as_spec, dict)
    assert ("replicas" in as_status["spec"], as_status["status"]) == (False, {"replicas": 2})
    assert (as_spec["spec"]["replicas"], as_spec["status"]) == (3, {"replicas": 2})
    assert (as_status["metadata"]["generation"], as_spec["metadata"]["generation"]) == (1, 2)


# Examples


@pytest.mark.parametrize("path", EXAMPLES, ids=str)
def test_an_example_applies(objects: Objects, kubectl: Kubectl, path: Path) -> None:
    where = ("--namespace", objects.namespace, "-f", str(path))
    kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", *where)
    kubectl("apply", "--validate=strict", *where)
    try:
        for one in documents(path):
            kubectl("get", one["kind"], one["metadata"]["name"], "--namespace", objects.namespace)
    finally:
        kubectl("delete", "--wait=false", *where)


# What kubectl shows


def folded(text: str) -> str:
    return " ".join(text.split())


def explained(kind: str) -> Iterator[tuple[Field, list[Field]]]:
    """Yield each place that has fields, with its fields; an item of a list has the place of its list."""
    named = {each.path.replace("[]", "").replace("{}", ""): each for each in reversed(list(fields(kind)))}
    for path, place in named.items():
        if children := [each for name, each in named.items() if name.rpartition(".")[0] == path]:
            yield place, children


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize("kind", definitions())
def test_kubectl_explain_has_a_text_for_every_field(kubectl: Kubectl, kind: str) -> None:
    """Every place with fields is asked for: an answer has the text of the place itself and of each of its fields."""
    plural = definitions()[kind]["spec"]["names"]["plural"]
    untold = []
    for place, children in explained(kind):
        path = place.path.replace("[]", "")
        said = folded(kubectl("explain", f"{plural}.{path}", f"--api-version={GROUP}/{VERSION}"))
        untold += [str(each) for each in (place, *children) if folded(each.node["description"]) not in said]
    assert not untold


@pytest.mark.usefixtures("stored")
def test_kubectl_scale_sets_the_replicas_of_a_service_without_autoscaling(objects: Objects, kubectl: Kubectl) -> None:
    # It had no number at all: kubectl writes the first.
    kubectl("scale", "infs/stored", "--replicas=3", "--namespace", objects.namespace)
    kubectl("scale", "infs/stored", "--current-replicas=3", "--replicas=5", "--namespace", objects.namespace)
    asked = kubectl("get", "infs", "stored", "--namespace", objects.namespace, "-o", "jsonpath={.spec.replicas}")
    assert asked == "5"


def scale_of(objects: Objects) -> dict[str, Any]:
    scale = objects.api.get_namespaced_custom_object_scale(
        GROUP, VERSION, objects.namespace, "inferenceservices", "stored"
    )
    assert isinstance(scale, dict)
    return scale


@pytest.mark.usefixtures("stored")
def test_the_scale_subresource_tells_what_an_autoscaler_needs(objects: Objects) -> None:
    status = {"replicas": 2, "selector": "app.kubernetes.io/instance=stored"}
    objects.patch(manifest(SERVICE, {"metadata.name": "stored", "status": status}), part="status")
    objects.patch(manifest(SERVICE, {"metadata.name": "stored", "spec.replicas": 4}))
    scale = scale_of(objects)
    assert scale["spec"] == {"replicas": 4}
    assert scale["status"] == status


@pytest.mark.usefixtures("stored")
def test_an_autoscaler_waits_until_somebody_has_written_a_first_number(objects: Objects) -> None:
    with pytest.raises(client.ApiException, match=r"the spec replicas field .* does not exist"):
        scale_of(objects)


@pytest.mark.usefixtures("stored")
def test_scaling_beyond_the_bound_is_refused(objects: Objects) -> None:
    with pytest.raises(client.ApiException, match="should be less than or equal to 1000"):
        objects.api.patch_namespaced_custom_object_scale(
            GROUP, VERSION, objects.namespace, "inferenceservices", "stored", {"spec": {"replicas": 1001}}
        )


@pytest.mark.usefixtures("stored")
def test_kubectl_get_shows_the_columns(objects: Objects, kubectl: Kubectl) -> None:
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "Loading",
        "message": "wait",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {
        "conditions": [condition],
        "readyReplicas": 2,
        "desiredReplicas": 3,
        "observed": {"ttftP90": "812ms", "hitRate": "0.61", "pinnedKv": "0.54"},
    }
    objects.patch(manifest(SERVICE, {"metadata.name": "stored", "status": status}), part="status")
    header, row = kubectl("get", "infs", "stored", "--namespace", objects.namespace).splitlines()
    assert header.split() == ["NAME", "READY", "DESIRED", "HIT%", "TTFT-P90", "KV%", "REASON", "AGE"]
    assert row.split()[:-1] == ["stored", "2", "3", "0.61", "812ms", "0.54", "Loading"]


def test_the_category_inference_lists_all_four_kinds(objects: Objects, kubectl: Kubectl) -> None:
    made = [objects.create(manifest(kind, {"metadata.name": "one"}), dry=False) for kind in definitions()]
    try:
        listed = kubectl("get", "inference", "--namespace", objects.namespace, "-o", "name").split()
    finally:
        for one in made:
            assert isinstance(one, dict), one
            objects.delete(one)
    names = (f"{definition['metadata']['name'].removesuffix(f's.{GROUP}')}" for definition in definitions().values())
    assert {name.partition(".")[0] for name in listed} >= {name.replace("policie", "policy") for name in names}


@pytest.mark.parametrize(
    ("short", "kind"), [("infs", SERVICE), ("lora", "LoRAAdapter"), ("asp", "AutoscalingPolicy"), ("itn", "Tenant")]
)
def test_a_short_name_means_its_kind(objects: Objects, kubectl: Kubectl, short: str, kind: str) -> None:
    listed = json.loads(kubectl("get", short, "--namespace", objects.namespace, "-o", "json"))
    assert listed["kind"] == "List"
    assert kubectl("get", short, "--namespace", objects.namespace, "-o", "name").count(kind.lower()) == len(
        listed["items"]
    )
