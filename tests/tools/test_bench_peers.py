"""Peers are installed once, each in an environment of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sapwood_tools.bench.peers import Peer, install


def test_a_peer_is_installed_once_and_again_when_its_versions_change(tmp_path: Path) -> None:
    peer = Peer("tested", "nothing at all")
    versions = tmp_path / "tested.txt"
    versions.write_text("# nothing\n")
    python = install(peer, scripts=tmp_path, folder=tmp_path)
    subprocess.run([str(python), "-c", "import sys; assert sys.prefix != sys.base_prefix"], check=True)

    # An interpreter that cannot run shows that nothing is run the second time, and that something is the
    # third.
    python.unlink()
    python.write_text("")
    assert install(peer, scripts=tmp_path, folder=tmp_path) == python
    versions.write_text("# nothing, but other\n")
    with pytest.raises((subprocess.CalledProcessError, PermissionError)):
        install(peer, scripts=tmp_path, folder=tmp_path)
