"""Programs of the system that a test needs and Python does not bring."""

from __future__ import annotations

import os
import shutil

import pytest


def needs(name: str) -> str:
    """Return where the program ``name`` is.

    Without it the test is skipped, and fails where the environment variable CI is set: `.ci/run` installs them all.
    """
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
    if path is not None:
        return path
    told = f"{name} is not installed; on Debian: apt-get install {name}"
    if os.environ.get("CI"):
        pytest.fail(told)
    pytest.skip(told)
