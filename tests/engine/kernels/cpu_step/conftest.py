"""Compiled kernels of this folder's tests are kept in pytest's cache folder."""

from __future__ import annotations

import pytest

from sapwood_engine.kernels import compiled


def pytest_configure(config: pytest.Config) -> None:
    """Say where, before the first module here imports a kernel."""
    assert config.cache is not None
    compiled.use_cache(config.cache.mkdir("kernels"))
