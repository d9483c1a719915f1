"""What the harness refuses to do, and why.

::

    HarnessError            told to the user as it is, without a traceback
    ├── MissingError        this machine lacks something; names what and how to get it
    ├── BuildError          a program could not be built; names the log's end
    ├── StartError          a process of the cluster did not come up; names its log
    └── NoClusterError      no cluster of that name runs
"""

from __future__ import annotations


class HarnessError(Exception):
    """The harness cannot do what it was asked; the message says what to do."""


class MissingError(HarnessError):
    """The machine lacks something that the cluster needs."""

    def __init__(self, missing: list[str]) -> None:
        lines = "\n".join(f"  - {line}" for line in missing)
        super().__init__(
            "this machine cannot run the end-to-end cluster; it lacks:\n"
            f"{lines}\n"
            "Or set KUBECONFIG to a cluster that may be used for tests."
        )


class BuildError(HarnessError):
    """A Go program did not build."""


class StartError(HarnessError):
    """A process of the cluster ended or did not become ready in time."""


class NoClusterError(HarnessError):
    """There is no running cluster of the given name."""
