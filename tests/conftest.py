"""What holds for every test: no example is judged by how long it took, for machines are shared."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, settings
from support_broken_runs import forget_failures_of_a_broken_run

# On top of what Hypothesis chose by itself, which is a fixed order of examples where CI is set.
settings.register_profile("sapwood", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sapwood")


@pytest.hookimpl(trylast=True)  # after pytest wrote what failed
def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    """Let the next run find the kernels that this one compiled."""
    forget_failures_of_a_broken_run(session, exitstatus)
    compiled = sys.modules.get("sapwood_engine.kernels.compiled")
    if compiled is not None:
        compiled.seal_cache()
