"""The command line: keys, ports, names, and refusals before anything heavy starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sapwood_engine.cli import API_KEY_VARIABLE, listen, read_api_keys, read_keys, serve
from sapwood_engine.config import HttpSettings
from sapwood_engine.errors import ConfigError
from sapwood_engine.service.exit_codes import EXIT_FAILED, EXIT_USAGE


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


def test_a_key_that_no_client_can_send_is_refused_by_its_line_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    for key in ("schlüssel", "\ufeffkey", "a\tb"):
        path.write_text(f"one\n\n{key}\n", encoding="utf-8")
        with pytest.raises(ConfigError, match="line 3") as refusal:
            read_api_keys(str(path), {})
        assert key not in str(refusal.value)
        with pytest.raises(ConfigError, match=API_KEY_VARIABLE) as refusal:
            read_api_keys(None, {API_KEY_VARIABLE: key})
        assert key not in str(refusal.value)


@pytest.mark.parametrize("option", ["--gateway-credential-file", "--admin-key-file", "--api-key-file"])
@pytest.mark.parametrize("content", [None, b"", b" \n\n", b"sk-\xff", "schlüssel".encode()])
def test_an_engine_whose_file_of_keys_cannot_be_used_does_not_start_and_names_the_option_and_no_key(
    option: str, content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    assert serve([f"{option}={path}", "--port=0", "--admin-port=0"]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert option in said
    assert "sk-" not in said
    assert "schl" not in said


def test_a_file_of_credentials_may_hold_the_old_and_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "credential"
    path.write_text("old\nnew\n")
    assert read_keys("--gateway-credential-file", str(path)) == {"old", "new"}
    assert read_keys("--gateway-credential-file", None) == frozenset()


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


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "sapwood", "serve", "--port=0", *options]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    """Run a program that ends by itself."""
    return subprocess.run(command(*options), capture_output=True, text=True, check=False, timeout=60)


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that says why it ended."""
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("sapwood:")]
    return line


def test_a_model_that_is_not_there_ends_the_start_with_one_line(tmp_path: Path) -> None:
    done = run(f"--model={tmp_path}/none")
    assert done.returncode == EXIT_FAILED
    assert "/none" in complaint(done)


@pytest.mark.parametrize("option", ["--context-length=8193", f"--kv-tokens={10**12}", "--context-length=8000"])
def test_what_can_never_fit_is_refused_before_the_weights_are_loaded(option: str) -> None:
    done = run(option, *(["--kv-tokens=4000"] if option == "--context-length=8000" else []))
    assert done.returncode == EXIT_USAGE
    assert f"{option.replace('=', ': ')} cannot be used" in complaint(done)
    assert "loading" not in done.stdout


def test_a_signal_that_comes_before_anything_is_there_to_end_ends_the_program_in_order(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    os.mkfifo(keys)
    process = subprocess.Popen(command(f"--api-key-file={keys}"), stderr=subprocess.PIPE)
    with keys.open("w") as pipe:  # opened once the program reads its keys
        process.send_signal(signal.SIGTERM)
        pipe.write("key\n")
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")


def test_an_api_open_to_other_machines_without_a_key_is_warned_of_in_one_line() -> None:
    def warnings(*options: str) -> list[str]:
        return [line for line in run("--model=none", *options).stderr.splitlines() if "no API key" in line]

    assert len(warnings("--host=0.0.0.0")) == 1
    assert not warnings("--host=127.0.0.2")


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
