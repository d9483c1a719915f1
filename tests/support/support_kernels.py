"""Where tests of compiled kernels keep them: half a minute of compiling is done once a run, not once a process."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

import pytest

from sapwood_engine.cli import _kernel_cache
from sapwood_engine.kernels import compiled


def keep_kernels(config: pytest.Config) -> None:
    """Keep them in pytest's cache folder, beginning with what engines that tests have started compiled before.

    A folder of the tests' own, for a start removes from its folder what no start has sealed. To be called by a fixture
    or a test, so that the engines of tests before it have run.
    """
    assert config.cache is not None
    _take_from_engines(compiled.use_cache(config.cache.mkdir("kernels")))


@cache
def _take_from_engines(folder: Path) -> None:
    of_engines = _kernel_cache(os.environ) / folder.name
    for file in of_engines.rglob("*.nb[ic]"):
        kept = folder / file.relative_to(of_engines)
        if not kept.exists():
            kept.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, kept)
