"""A run of the tests that broke off is not one of which some tests failed: `.ci/run` runs only the latter's again."""

from __future__ import annotations

import os

import pytest


def forget_failures_of_a_broken_run(session: pytest.Session, exit_status: int | pytest.ExitCode) -> None:
    """Leave nothing for ``--last-failed`` where CI's run ended before its last test: a file that could not be
    collected, an interruption, a fault of pytest. Else the few that failed till then would stand for all."""
    ran_all = exit_status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if os.environ.get("CI") and not ran_all and session.config.cache is not None:
        session.config.cache.set("cache/lastfailed", {})
