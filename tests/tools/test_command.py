"""The `sapwood` command finds its programs and says what it has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from sapwood import __main__ as command

PROJECT = Path("pyproject.toml").read_text(encoding="utf-8")


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
    for module in ("sapwood_tools.tree", "sapwood_tools.admin_client"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)  # as if it were not installed
    assert command.main(["tree"]) == 1
    assert "pip install '.[engine]'" in capsys.readouterr().err


def test_the_plugin_of_kubectl_without_the_operators_packages_says_what_to_install() -> None:
    without = "import sys; sys.modules['kubernetes'] = None; from sapwood.__main__ import kubectl_sapwood as run; "
    done = subprocess.run(
        [sys.executable, "-c", without + "sys.exit(run())", "status", "chat"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("sapwood: this command needs the package 'kubernetes")
    assert done.stderr.endswith("install it from a checkout of Sapwood with: pip install '.[operator]'\n")


def test_the_script_that_kubectl_runs_is_that_plugin() -> None:
    (script,) = [s for s in tomllib.loads(PROJECT)["project"]["scripts"].items() if s[0] == "kubectl-sapwood"]
    assert script[1] == f"{command.__name__}:{command.kubectl_sapwood.__name__}"
    assert callable(command.KUBECTL.load())
