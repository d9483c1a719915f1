"""Compiled kernels of this folder's tests are kept in pytest's cache folder."""

from __future__ import annotations

import pytest
from support_kernels import keep_kernels

from sapwood_engine.kernels import compiled


def pytest_configure(config: pytest.Config) -> None:
    """Say where, before the first module here imports a kernel."""
    assert config.cache is not None
    compiled.use_cache(config.cache.mkdir("kernels"))


@pytest.fixture(autouse=True, scope="package")
def kept(pytestconfig: pytest.Config) -> None:
    """Do not compile what an engine of another test has."""
    keep_kernels(pytestconfig)
