"""The command line: keys, ports, names, and refusals before anything heavy starts."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sapwood_engine.cli import API_KEY_VARIABLE, EXIT_USAGE, listen, read_api_keys, serve
from sapwood_engine.config import HttpSettings
from sapwood_engine.errors import ConfigError


def test_keys_come_from_the_file_and_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one\n\n  two  \n")
    assert read_api_keys(str(path), {API_KEY_VARIABLE: "three"}) == {"one", "two", "three"}
    assert read_api_keys(None, {}) == frozenset()
    assert read_api_keys(None, {API_KEY_VARIABLE: " "}) == frozenset()


@pytest.mark.parametrize("content", [None, "", "\n \n"])
def test_a_key_file_that_asks_for_keys_and_has_none_is_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="--api-key-file"):
        read_api_keys(str(path), {API_KEY_VARIABLE: "three"})


def test_a_port_in_use_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve([f"--port={port}", "--admin-port=0"]) == EXIT_USAGE
    assert f"--port: {port} cannot be used" in capsys.readouterr().err


def test_a_host_that_is_no_name_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["--host=a..b", "--port=0", "--admin-port=0"]) == EXIT_USAGE
    assert "a..b" in capsys.readouterr().err


def test_an_option_out_of_range_is_refused_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["--page-size=0"]) == EXIT_USAGE
    assert "--page-size: 0 cannot be used" in capsys.readouterr().err


def test_ports_are_bound_where_asked_and_free_ones_found() -> None:
    settings = HttpSettings(host="127.0.0.1", port=0, admin_host="127.0.0.1", admin_port=0, drain_seconds=1.0)
    ports = listen(settings)
    with ports.api, ports.admin:
        assert ports.api.getsockname()[1] != ports.admin.getsockname()[1] > 0


def test_a_model_that_is_not_there_ends_the_start_with_one_line(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sapwood",
        "serve",
        f"--model={tmp_path}/none",
        "--port=0",
        "--admin-port=0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("sapwood:")]
    assert "/none" in line
    assert "Traceback" not in done.stderr


def test_the_http_process_does_not_import_torch() -> None:
    code = (
        "import sys\n"
        "import sapwood_engine.api.admin, sapwood_engine.api.app, sapwood_engine.cli, sapwood_engine.config\n"
        "import sapwood_engine.service.client, sapwood_engine.service.lifecycle\n"
        "import sapwood_engine.service.worker\n"
        "import sapwood_engine.service.tokenizer_files\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
