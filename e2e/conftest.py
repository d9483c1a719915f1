"""Every test here needs a cluster: one of the harness (``make e2e``, or ``python -m cluster exec -- pytest e2e/…``) or
the one that ``KUBECONFIG`` names. Without either there is nothing to test, and that is an error."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from support_broken_runs import forget_failures_of_a_broken_run

from cluster import bringup, processes
from cluster.audit import AuditLog
from cluster.cli import NAME_VARIABLE
from cluster.layout import Layout, layout


def pytest_sessionstart() -> None:
    if not os.environ.get("KUBECONFIG"):
        raise pytest.UsageError("no cluster: run `make e2e`, or set KUBECONFIG to a cluster that may be used for tests")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # What a shell starts in the background ignores Ctrl-C, and so would the programs that tests interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)  # after pytest wrote what failed
def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    forget_failures_of_a_broken_run(session, exitstatus)


@pytest.fixture(scope="session")
def harness() -> Layout:
    """The harness's own cluster: its processes may be stopped and its files read."""
    if NAME_VARIABLE not in os.environ:
        pytest.skip("needs the harness's own cluster: it looks into the control plane or disturbs it")
    return layout(os.environ[NAME_VARIABLE], os.environ)


@pytest.fixture(scope="session")
def audit(harness: Layout) -> AuditLog:
    """What was written to the API server, and by whom."""
    return AuditLog(harness.audit_log)


@pytest.fixture(scope="session")
def restart_api_server(harness: Layout) -> Callable[[], None]:
    """Kill the API server, and return once a new one answers."""

    def restart() -> None:
        processes.stop(harness, "kube-apiserver", term_seconds=0)
        processes.start_again(harness, "kube-apiserver")
        bringup.wait_for_api(harness)

    return restart
