"""Names and folders of a cluster, what its programs are built from, and what its audit log says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cluster import binaries
from cluster.audit import AuditLog, Call
from cluster.errors import HarnessError, MissingError
from cluster.layout import cache_root, kernels_root, layout, node_address, node_name, node_number
from cluster.nodes import give_kernels
from cluster.requirements import go_version

HOME = {"HOME": "/somewhere"}


def test_two_clusters_share_no_name_and_no_folder() -> None:
    one, two = layout("e2e", HOME), layout("other", HOME)
    assert one.netns != two.netns
    assert one.state == Path("/somewhere/.local/state/sapwood/e2e/e2e")
    assert not two.state.is_relative_to(one.state)


def test_folders_follow_the_users_settings() -> None:
    environment = HOME | {"XDG_STATE_HOME": "/state", "XDG_CACHE_HOME": "/cache"}
    assert layout("e2e", environment).state == Path("/state/sapwood/e2e/e2e")
    assert cache_root(environment) == Path("/cache/sapwood/e2e")
    assert cache_root(HOME) == Path("/somewhere/.cache/sapwood/e2e")
    assert kernels_root(HOME) == Path("/somewhere/.cache/sapwood/kernels")


def test_a_node_begins_with_the_kernels_that_were_compiled_last_and_whoever_its_pods_run_as_may_change_them(
    tmp_path: Path,
) -> None:
    for age, name in enumerate(("new", "old")):
        (tmp_path / "compiled" / name).mkdir(parents=True)
        (tmp_path / "compiled" / name / "step.nbc").write_text(name)
        os.utime(tmp_path / "compiled" / name, (1000 - age, 1000 - age))
    give_kernels(tmp_path / "compiled", tmp_path / "node")
    kernels = tmp_path / "node" / "sapwood" / "kernels"
    assert [path.relative_to(kernels).as_posix() for path in kernels.rglob("*.nbc")] == ["new/step.nbc"]
    assert {path.stat().st_mode & 0o7 for path in (kernels, kernels / "new")} == {0o7}


def test_a_node_of_a_machine_without_kernels_has_none(tmp_path: Path) -> None:
    give_kernels(tmp_path / "compiled", tmp_path / "node")
    assert list((tmp_path / "node" / "sapwood" / "kernels").iterdir()) == []


@pytest.mark.parametrize("name", ["", "Upper", "1st", "a/b", "..", "x-", "a" * 21])
def test_a_name_that_no_namespace_can_have_is_refused(name: str) -> None:
    with pytest.raises(HarnessError, match="lower-case letters"):
        layout(name, HOME)


def test_a_nodes_address_follows_from_its_name() -> None:
    assert node_address(node_number(node_name(12))) == "10.77.12.1"
    with pytest.raises(HarnessError, match="nodes 1 to 250"):
        node_address(251)


@pytest.mark.parametrize(
    ("said", "version"), [("go1.26.8\n", (1, 26)), ("go1.9", (1, 9)), ("devel", (0, 0)), ("", (0, 0))]
)
def test_the_compilers_version_is_read(said: str, version: tuple[int, int]) -> None:
    assert go_version(said) == version


def test_everything_that_is_missing_is_said_at_once() -> None:
    message = str(MissingError(["root", "Go 1.26"]))
    assert "  - root\n  - Go 1.26\n" in message
    assert "KUBECONFIG" in message


def test_the_version_of_kubernetes_stands_in_go_mod_alone() -> None:
    go_mod = "require (\n\tk8s.io/api v0.36.3\n\tk8s.io/kubernetes v1.36.3\n)\n"
    assert binaries.required_version(go_mod, "k8s.io/kubernetes") == "v1.36.3"
    stamps = dict(binaries.APISERVER.stamps)
    assert stamps["k8s.io/component-base/version.gitVersion"].startswith("v1.")


def test_programs_of_one_module_are_compiled_with_the_same_flags() -> None:
    """Else each would compile the whole module again."""
    commands = [binaries.command_of(program, Path("/out")) for program in binaries.CONTROL_PLANE]
    flags = [{flag for flag in command if flag.startswith("-") and "ldflags" not in flag} for command in commands]
    assert all(one == flags[0] for one in flags)
    assert {"-trimpath", "-mod=readonly"} <= flags[0]


def test_a_program_is_named_by_what_it_is_built_from(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\n", encoding="utf-8")
    (tmp_path / "main.go").write_text("package main\n", encoding="utf-8")
    before = binaries.digest_of(binaries.LAUNCHER, tmp_path, "go1.26")
    assert binaries.digest_of(binaries.LAUNCHER, tmp_path, "go1.26") == before
    assert binaries.digest_of(binaries.LAUNCHER, tmp_path, "go1.27") != before
    (tmp_path / "main.go").write_text("package main // changed\n", encoding="utf-8")
    assert binaries.digest_of(binaries.LAUNCHER, tmp_path, "go1.26") != before


def event(user: str, verb: str, **target: str) -> dict[str, object]:
    answer = {"code": 200}
    return {
        "user": {"username": user},
        "userAgent": "test",
        "verb": verb,
        "objectRef": target,
        "responseStatus": answer,
    }


def test_the_writes_of_one_user_are_found_in_the_audit_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    assert log.position() == 0
    assert log.writes("operator") == []
    status = {"apiGroup": "apps", "resource": "deployments", "subresource": "status", "namespace": "n", "name": "d"}
    events = [
        event("operator", "create", resource="services", namespace="n", name="s"),
        event("operator", "get", resource="services", namespace="n", name="s"),
        event("somebody", "create", resource="services", namespace="n", name="t"),
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in events), encoding="utf-8")
    assert [call.name for call in log.writes("operator")] == ["s"]
    since = log.position()
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(event("operator", "patch", **status)) + "\n" + '{"half of a li')
    assert log.writes("operator", since) == [
        Call("operator", "test", "patch", "apps/deployments/status", "n", "d", 200),
    ]
