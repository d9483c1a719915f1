"""The folder of the pipes between the two processes: only this user may enter it, and it goes with the program.

The path of a Unix socket is short, so the usual folder for temporary files may lie too deep.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from sapwood_engine.errors import ConfigError

SOCKET_NAMES = ("to-worker", "from-worker")
_MOST_PATH_BYTES = 107
"""Of a Unix socket's path on Linux, without the zero at its end (`unix(7)`)."""
_SHORT_PLACES = ("/tmp", "/var/tmp", "/dev/shm")


def new_pipe_folder() -> Path:
    """Make an empty folder in which the pipes' sockets can be bound.

    Where the usual folder for temporary files lies too deep, another is taken; `ConfigError` where there is none.
    """
    for place in (None, *_SHORT_PLACES):
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="sapwood-", dir=place))
            if max(len(bytes(folder / name)) for name in SOCKET_NAMES) <= _MOST_PATH_BYTES:
                return folder
            folder.rmdir()
    raise ConfigError(
        "TMPDIR",
        list(_SHORT_PLACES),
        "none of these can be written and the usual place lies too deep for a socket: name a folder of a short path",
    )
