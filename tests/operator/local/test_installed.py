"""The rules of the API and the runbooks come with the package: an installation has no repository beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from sapwood_operator.adapters.runbooks import read_runbooks
from sapwood_operator.local.definitions import read_definitions

CODE = """
from sapwood_operator.adapters.runbooks import read_runbooks
from sapwood_operator.local import definitions
print(definitions.__file__)
print(sorted(definitions.read_definitions()))
print(read_runbooks())
"""


def test_an_installed_package_has_the_definitions_and_the_runbooks_of_the_repository(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={tmp_path}"]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(
        [sys.executable, "-c", CODE], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    module, kinds, runbooks = done.stdout.split("\n", maxsplit=2)
    assert Path(module).is_relative_to(tmp_path)
    assert kinds == str(sorted(read_definitions()))
    assert runbooks.strip() == read_runbooks().strip()
