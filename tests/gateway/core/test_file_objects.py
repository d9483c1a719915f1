"""What may stand in a discovery file, and what of it is told to be wrong."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood_gateway.core.file_objects import InvalidObjects, objects_of


def an_object(kind: str, name: str = "a", **metadata: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, **metadata}}


def test_objects_are_sorted_by_kind_and_get_the_default_namespace() -> None:
    found = objects_of([an_object("ConfigMap"), an_object("EndpointSlice", namespace="team"), an_object("Tenant")])
    assert [each["metadata"]["namespace"] for each in found.config_maps] == ["default"]
    assert [each["metadata"]["namespace"] for each in found.slices] == ["team"]
    assert [each["metadata"]["name"] for each in found.tenants] == ["a"]


def test_a_list_and_several_documents_are_the_same() -> None:
    apart = [an_object("ConfigMap"), an_object("Tenant")]
    assert objects_of([{"kind": "List", "items": apart}]) == objects_of(apart)


def test_a_list_without_items_says_that_there_is_nothing() -> None:
    assert objects_of([None, {"kind": "List", "items": []}]).config_maps == ()


@pytest.mark.parametrize("documents", [[], [None], [None, None]])
def test_a_file_without_a_document_says_nothing(documents: list[object]) -> None:
    with pytest.raises(InvalidObjects, match="there is no document in it; a List without items says that"):
        objects_of(documents)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("text", "document 2: it is no object, but str"),
        ({"kind": "List", "items": "x"}, "document 2: items: it is not a list of objects"),
        ({"kind": "List", "items": ["x"]}, "document 2: items: it is not a list of objects"),
        ({"kind": "List", "items": [{"kind": "Pod"}]}, "document 2, items[0]: kind: 'Pod' is not one of ConfigMap,"),
        (an_object("EndpointSlices"), "document 2: kind: 'EndpointSlices' is not one of ConfigMap, EndpointSlice,"),
        ({"metadata": {"name": "a"}}, "document 2: kind: None is not one of"),
        ({"kind": "Tenant"}, "document 2: metadata.name: missing; give the object a name"),
        (an_object("Tenant", namespace=4), "document 2: metadata: namespace is no text"),
        (an_object("Tenant", labels="x"), "document 2: metadata: namespace is no text, or labels are not all texts"),
        (
            an_object("EndpointSlice", labels={"kubernetes.io/service-name": ["a"]}),
            "document 2: metadata: namespace is",
        ),
    ],
)
def test_what_cannot_be_used_is_named_by_its_place(document: object, problem: str) -> None:
    with pytest.raises(InvalidObjects) as raised:
        objects_of([an_object("ConfigMap"), document])
    assert str(raised.value).startswith(problem)
