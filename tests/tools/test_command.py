"""The `sapwood` command finds its programs and says what it has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest

from sapwood import __main__ as command


def test_every_program_named_can_be_loaded() -> None:
    for name, program in command.PROGRAMS.items():
        assert callable(program.load()), name


def test_an_unknown_command_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["srve"]) == 2
    error = capsys.readouterr().err
    assert "'srve'" in error
    assert all(name in error for name in command.PROGRAMS)


def test_no_command_at_all_is_told_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 2
    assert "usage: sapwood COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_the_distributions(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([flag]) == 0
    assert capsys.readouterr().out == f"sapwood {version('sapwood')}\n"


def test_help_lists_every_program_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(program.summary in shown for program in command.PROGRAMS.values())


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["tree", "--help"]], ids=" ".join)
def test_a_reader_that_left_is_no_fault(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sapwood", *arguments], stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert done.stderr == b""
    assert done.returncode in (0, 128 + signal.SIGPIPE)  # argparse hides it from us


def test_closed_standard_streams_are_no_fault() -> None:
    command_line = f"{sys.executable} -m sapwood --help >&- 2>&-"
    assert subprocess.run(command_line, shell=True, check=False).returncode == 0


def test_a_missing_extra_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "sapwood_tools.tree", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)  # as if it were not installed
    assert command.main(["tree"]) == 1
    assert "pip install 'sapwood[engine]'" in capsys.readouterr().err
