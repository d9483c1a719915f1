"""Reads the rule that a replay is to follow: an AutoscalingPolicy, an InferenceService that has one, or a bare spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sapwood_gateway.shell.yaml_text import UnreadableText, documents_in
from sapwood_operator.domain.fields import Fields
from sapwood_operator.domain.scaling_policy import ScalingPolicy, read_scaling_policy
from sapwood_operator.errors import InvalidSpec


class UnusablePolicy(ValueError):
    """The file holds no rule that can be replayed; the message names file, field and what to do."""


def read_policy(path: Path) -> ScalingPolicy:
    """Return the rule in the file at ``path``; `OSError` where it cannot be read, `UnusablePolicy` as it says.

    A replay measures against a promise, so ``slo.ttftP90`` must be there.
    """
    try:
        documents = [each for each in documents_in(path.read_bytes()) if each is not None]
        if len(documents) != 1:
            raise UnusablePolicy(f"{path}: it has {len(documents)} documents: give one, with the policy")
        policy = read_scaling_policy(_fields(documents[0]))
    except (UnreadableText, InvalidSpec) as error:
        raise UnusablePolicy(f"{path}: {error}") from None
    if policy.ttft_p90_seconds is None:
        raise UnusablePolicy(f"{path}: slo.ttftP90: it is required here: a replay is measured against it")
    return policy


def _fields(document: Any) -> Fields:
    whole = Fields(document if isinstance(document, dict) else {}, "")
    match whole.text("kind", "none"):
        case "AutoscalingPolicy":
            return whole.inner("spec")
        case "InferenceService":
            return whole.inner("spec").inner("autoscaling")
        case _:
            return whole
