"""The definitions keep the rules of crds/README.md: each place described, bounded and named alike."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support_crds import GROUP, Field, definitions, field, fields, node_problems, rules, version

KINDS = {
    "AutoscalingPolicy": ("autoscalingpolicies", "asp"),
    "InferenceService": ("inferenceservices", "infs"),
    "LoRAAdapter": ("loraadapters", "lora"),
    "Tenant": ("tenants", "itn"),
}
EVERY_FIELD = [each for kind in KINDS for each in fields(kind)]


def of_type(name: str) -> list[Field]:
    return [each for each in EVERY_FIELD if each.node.get("type") == name]


def is_int_or_string(each: Field) -> bool:
    return each.node.get("x-kubernetes-int-or-string") is True


def test_there_are_four_kinds() -> None:
    assert {kind: definition["spec"]["group"] for kind, definition in definitions().items()} == dict.fromkeys(
        KINDS, GROUP
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_its_names_and_is_in_the_category_inference(kind: str) -> None:
    plural, short = KINDS[kind]
    definition = definitions()[kind]
    assert definition["metadata"]["name"] == f"{plural}.{GROUP}"
    assert Path("crds", f"{plural}.yaml").is_file()
    assert definition["spec"]["scope"] == "Namespaced"
    assert definition["spec"]["names"] == {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        "shortNames": [short],
        "categories": ["inference"],
    }


@pytest.mark.parametrize("kind", KINDS)
def test_one_version_is_served_and_has_a_status_apart(kind: str) -> None:
    only = version(kind)
    assert (only["name"], only["served"], only["storage"]) == ("v1alpha1", True, True)
    assert only["subresources"]["status"] == {}


def test_a_service_can_be_scaled_by_others() -> None:
    assert version("InferenceService")["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


def test_a_service_is_listed_with_what_matters() -> None:
    columns = version("InferenceService")["additionalPrinterColumns"]
    assert [column["name"] for column in columns] == ["READY", "DESIRED", "HIT%", "TTFT-P90", "KV%", "REASON", "AGE"]


def test_every_field_is_described_in_sentences() -> None:
    assert not [str(each) for each in EVERY_FIELD if not re.fullmatch(r"[A-Z\"].{3,}\.", each.node["description"])]


def test_every_field_has_a_type_that_is_no_float() -> None:
    types = {"array", "boolean", "integer", "object", "string"}
    assert not [str(each) for each in EVERY_FIELD if each.node.get("type") not in types and not is_int_or_string(each)]


def test_field_names_are_lower_camel_case() -> None:
    assert not [str(each) for each in EVERY_FIELD if not re.fullmatch(r"[a-z][A-Za-z0-9]*(\[\]|\{\})?", each.name)]


def test_every_string_is_bounded() -> None:
    strings = [each for each in EVERY_FIELD if each.node.get("type") == "string" or is_int_or_string(each)]
    assert not [str(each) for each in strings if "maxLength" not in each.node and "enum" not in each.node]


def test_every_number_is_bounded_but_for_quantities_and_generations() -> None:
    numbers = [each for each in EVERY_FIELD if each.node.get("type") == "integer" or is_int_or_string(each)]
    assert all(each.node["minimum"] >= 0 for each in numbers)
    unbounded = {each.name for each in numbers if "maximum" not in each.node}
    assert unbounded == {"limits{}", "requests{}", "size", "observedGeneration"}


def test_every_list_is_bounded() -> None:
    assert not [str(each) for each in of_type("array") if each.node["maxItems"] > 1000]


def test_every_list_says_how_it_merges() -> None:
    """A map is merged by keys that every item has, so that two writers can own an item each."""
    for each in of_type("array"):
        keys, items = each.node.get("x-kubernetes-list-map-keys", []), each.node["items"]
        allowed = {"map"} if keys else {"atomic", "set"} if items["type"] == "string" else {"atomic"}
        assert each.node["x-kubernetes-list-type"] in allowed, each
        assert set(keys) <= set(items.get("required", [])), each


def test_an_object_is_made_of_fields_or_is_a_bounded_map() -> None:
    unnamed = [each for each in of_type("object") if "properties" not in each.node]
    assert not [str(each) for each in unnamed if each.node["maxProperties"] > 64]


def test_enums_are_camel_case_but_for_names_of_models() -> None:
    enums = [each for each in EVERY_FIELD if "enum" in each.node and each.name != "builtin"]
    assert not [
        str(each) for each in enums if not all(re.fullmatch(r"[A-Z][A-Za-z0-9]*", v) for v in each.node["enum"])
    ]


def with_default() -> list[Field]:
    return [each for each in EVERY_FIELD if "default" in each.node]


def test_a_default_is_allowed_by_its_own_schema() -> None:
    assert not [str(each) for each in with_default() if node_problems(each.node, each.node["default"])]


def test_a_default_is_told() -> None:
    for each in with_default():
        default = each.node["default"]
        told = str(default).lower() if isinstance(default, bool) else str(default)
        ways = (f"Default {told}.", f"Default {told},", f'Default "{told}"', f"{told}, the default")
        assert default == {} or any(way in each.node["description"] for way in ways), each


def test_a_pattern_is_held_to_the_whole_value() -> None:
    patterns = {each.node["pattern"] for each in EVERY_FIELD if "pattern" in each.node}
    assert not [pattern for pattern in patterns if not re.fullmatch(r"\^.*\$", pattern)]


def test_status_has_no_defaults() -> None:
    assert not [str(each) for each in with_default() if each.path.startswith("status")]


def test_what_is_not_built_is_there_only_when_a_user_writes_it() -> None:
    later = [each for each in EVERY_FIELD if "Not built yet" in each.node["description"]]
    assert not [str(each) for each in later if "default" in each.node or each.required]


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_says_what_to_do(kind: str) -> None:
    for path, rule in rules(kind):
        assert re.search(r"[;,] |^give ", rule["message"]), (path, rule["message"])
        assert not rule["message"].endswith(".")


def without_texts(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: without_texts(value) for key, value in node.items() if key not in ("description", "default")}
    return node


def test_a_policy_written_in_a_service_has_the_fields_of_one_written_apart() -> None:
    inline = dict(field("InferenceService", "spec.autoscaling").node["properties"])
    del inline["policyRef"]
    assert without_texts(inline) == without_texts(field("AutoscalingPolicy", "spec").node["properties"])


def test_a_policy_written_in_a_service_is_held_to_the_same_rules() -> None:
    def written(kind: str, path: str) -> list[str]:
        return [rule["rule"] for place, rule in rules(kind) if place == path]

    apart = written("AutoscalingPolicy", "spec")
    assert written("InferenceService", "spec.autoscaling")[-len(apart) :] == apart
