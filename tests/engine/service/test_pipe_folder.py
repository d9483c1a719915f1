"""Where the pipes between the processes lie."""

from __future__ import annotations

import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sapwood_engine.service.ipc import HttpChannel
from sapwood_engine.service.pipe_folder import new_pipe_folder


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, with a path that no socket can have."""
    folder = tmp_path / ("d" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_pipes_lie_where_temporary_files_do_and_nobody_else_may_enter() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        code = "from sapwood_engine.service.pipe_folder import new_pipe_folder; print(new_pipe_folder())"
        shown = subprocess.run(
            [sys.executable, "-c", code], env={"TMPDIR": place}, check=True, capture_output=True, text=True
        ).stdout
        folder = Path(shown.strip())
        assert folder.parent == Path(place)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_where_temporary_files_lie_too_deep_for_a_socket_the_pipes_lie_elsewhere(deep: Path) -> None:
    channel = HttpChannel(new_pipe_folder())
    folder = channel.addresses.directory
    assert not folder.is_relative_to(deep)
    assert not list(deep.iterdir())
    channel.close()
    assert not folder.exists()


def test_a_channel_that_makes_its_own_folder_makes_such_a_one(deep: Path) -> None:
    HttpChannel().close()
    assert not list(deep.iterdir())
