"""The rules of the API come with the package: an installation has no folder ``crds`` beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from sapwood_operator.local.definitions import read_definitions


def test_an_installed_package_has_the_definitions_of_the_repository(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={tmp_path}"]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = "from sapwood_operator.local import definitions as d; print(d.__file__); print(sorted(d.read_definitions()))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    module, kinds = done.stdout.splitlines()
    assert Path(module).is_relative_to(tmp_path)
    assert kinds == str(sorted(read_definitions()))
