"""The chart ships the CRDs of this repository, and leaves them when it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from support_chart import CHART, of_kind, render

CRDS = sorted(Path("crds").glob("*.yaml"))
COPIES = sorted((CHART / "files/crds").iterdir())
KEEP = {"helm.sh/resource-policy": "keep"}


def test_the_charts_copies_are_the_crds_to_the_byte() -> None:
    copies = {path.name: path.read_bytes() for path in COPIES}
    assert copies == {path.name: path.read_bytes() for path in CRDS}, "run: make docs"


def test_what_is_installed_differs_from_the_copies_by_the_keep_policy_alone() -> None:
    expected: dict[str, Any] = {}
    for path in COPIES:
        crd = yaml.safe_load(path.read_text(encoding="utf-8"))
        crd["metadata"]["annotations"] = crd["metadata"].get("annotations", {}) | KEEP
        expected[crd["metadata"]["name"]] = crd
    assert of_kind(render(), "CustomResourceDefinition") == expected


def test_nothing_but_the_crds_is_kept() -> None:
    kept = {m["kind"] for m in render() if KEEP.items() <= (m["metadata"].get("annotations") or {}).items()}
    assert kept == {"CustomResourceDefinition"}


def test_the_crds_can_be_left_to_an_administrator() -> None:
    manifests = render({"crds": {"install": False}})
    assert not of_kind(manifests, "CustomResourceDefinition")
    assert set(of_kind(manifests, "ClusterRole")) == {"sapwood-operator", "sapwood-gateway"}
