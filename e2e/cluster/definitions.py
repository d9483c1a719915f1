"""The CRDs of others that tests install: files of Go modules, which Go fetches into its cache and checks.

Nothing foreign is kept in this repository. A module is named with its checksum as go.sum has it, so the files are the
same everywhere, whatever Go is told to trust.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.binaries import build_environment
from cluster.errors import BuildError
from cluster.locks import say

_FETCH_SECONDS = 300
_OUTSIDE_ANY_MODULE = "/"
"""Where Go is run: below another go.mod it would change that one's go.sum."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """CRDs, one a file, in ``folder`` of a Go module."""

    module: str
    version: str
    checksum: str
    folder: str

    def paths(self, environment: Mapping[str, str]) -> dict[str, Path]:
        """Return the CRDs' files by their names in the module; `BuildError` where they cannot be had.

        Needs a network only where nobody has fetched them before.
        """
        folder = _fetched(self, environment) / self.folder
        return {path.name: path for path in sorted(folder.glob("*.yaml"))}


PROMETHEUS_OPERATOR = Definitions(
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    "example/prometheus-operator-crd",
)
GATEWAY_API = Definitions(
    "sigs.k8s.io/gateway-api",
    "v1.6.3",
    "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc=",
    "config/crd/standard",
)
ALL = (PROMETHEUS_OPERATOR, GATEWAY_API)


def _fetched(wanted: Definitions, environment: Mapping[str, str]) -> Path:
    asked = ["go", "mod", "download", "-json", f"{wanted.module}@{wanted.version}"]
    done = subprocess.run(
        asked,
        check=False,
        capture_output=True,
        text=True,
        timeout=_FETCH_SECONDS,
        cwd=_OUTSIDE_ANY_MODULE,
        env=build_environment(environment),
    )
    told = json.loads(done.stdout or "{}")
    if done.returncode:
        raise BuildError(f"{wanted.module}@{wanted.version} cannot be had: {told.get('Error') or done.stderr.strip()}")
    if told["Sum"] != wanted.checksum:
        raise BuildError(f"{wanted.module}@{wanted.version} has the checksum {told['Sum']}, not {wanted.checksum}")
    return Path(told["Dir"])


def fetch(environment: Mapping[str, str]) -> None:
    """Fetch all of them, so that tests find them where no route leads out."""
    for wanted in ALL:
        say(f"{len(wanted.paths(environment))} CRDs of {wanted.module} {wanted.version}")
