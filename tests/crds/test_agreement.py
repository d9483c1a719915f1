"""What the texts and rules promise of the engine's options and of what is not built, to the letter."""

from __future__ import annotations

import dataclasses
import re

from support_crds import fields, rules

from sapwood_contract.launch import LaunchOptions, flag
from sapwood_operator.domain.unsupported import NOT_BUILT


def refused_options() -> set[str]:
    written = "".join(rule["rule"] for path, rule in rules("InferenceService") if path == "spec.engine.extraArgs[]")
    (names,) = re.findall(r"--\(([^)]*)\)=", "".join(re.findall(r"'([^']*)'", written)))
    return set(names.split("|"))


def test_the_options_that_have_no_field_are_these() -> None:
    options = {flag(option.name).removeprefix("--") for option in dataclasses.fields(LaunchOptions)}
    assert sorted(options - refused_options()) == [
        "console",
        "cpu-step",
        "dtype",
        "itl-target-seconds",
        "kv-events-token-ids",
        "kv-tokens",
        "log-level",
        "max-step-tokens",
        "metrics-compat",
        "overlap",
        "partial-pages",
        "quantization",
        "sampling-defaults",
        "seed",
        "step-timeout-seconds",
        "thread-binding",
        "threads",
        "ttft-target-seconds",
    ]


def told_as_not_built() -> set[str]:
    return {
        each.path.removeprefix("spec.")
        for each in fields("InferenceService")
        if re.search("not built yet", each.node["description"], re.IGNORECASE) and each.path.startswith("spec.")
    }


def test_the_texts_say_not_built_of_exactly_what_the_operator_reports() -> None:
    # A GPU is no field, but a key of a map; its text is that of engine.device.
    reported = {path for path, _ in NOT_BUILT if "[" not in path}
    assert told_as_not_built() == reported
