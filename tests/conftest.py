"""What holds for every test: no example is judged by how long it took, for machines are shared."""

from __future__ import annotations

import sys

from hypothesis import settings

# On top of what Hypothesis chose by itself, which is a fixed order of examples where CI is set.
settings.register_profile("sapwood", parent=settings(), deadline=None)
settings.load_profile("sapwood")


def pytest_sessionfinish() -> None:
    """Let the next run find the kernels that this one compiled."""
    compiled = sys.modules.get("sapwood_engine.kernels.compiled")
    if compiled is not None:
        compiled.seal_cache()
