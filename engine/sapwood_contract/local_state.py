"""Where `sapwood local` keeps what other programs of the same user look for: a folder a port, and names of files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

DISCOVERY_FILE = "discovery.json"
"""EndpointSlices of the engines, among others: a Kubernetes List in JSON."""
ADMIN_KEY_FILE = "admin-key"
"""The key of the admin API of engines that were given none."""
_FOLDER = re.compile(r"local-([1-9][0-9]{0,4})")


def state_folder(environment: Mapping[str, str], port: int) -> Path:
    """Return the folder of a `sapwood local` whose gateway listens on ``port``, unless it was given another one."""
    return _home(environment) / f"local-{port}"


def state_folders(environment: Mapping[str, str]) -> dict[int, Path]:
    """Return the folders that there are, by port; also of those that run no more."""
    home = _home(environment)
    names = (_FOLDER.fullmatch(path.name) for path in (home.iterdir() if home.is_dir() else ()))
    return {int(name[1]): home / name[0] for name in sorted(filter(None, names), key=lambda name: int(name[1]))}


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sapwood"
