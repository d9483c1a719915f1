"""``sapwood local`` as a command: what it refuses, and how it says so. What it does is in test_real."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sapwood_contract.local_state import ADMIN_KEY_FILE
from sapwood_operator.local.cli import gateway_arguments, read_options
from sapwood_operator.local.documents import Documents

SAPWOOD = [sys.executable, "-m", "sapwood"]


def refused(*arguments: str) -> str:
    """Run it, see it refuse, and return what it says."""
    done = subprocess.run([*SAPWOOD, "local", *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_a_document_that_breaks_a_rule_is_told_with_its_file_and_field(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    text = Path("examples/chat.yaml").read_text(encoding="utf-8")
    path.write_text(text + "  autoscaling:\n    maxReplicas: 4\n", encoding="utf-8")
    assert refused(f"--file={path}", f"--state-folder={tmp_path / 'state'}") == (
        f"sapwood local: {path}, document 1 (InferenceService chat): spec.replicas: 2 cannot be used: replicas and "
        "autoscaling both decide the number of replicas; remove one of them\n"
    )


@pytest.mark.parametrize("path", ["empty.yaml", "."])
def test_files_without_a_document_are_told(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert refused("-f", path) == f"sapwood local: there is no document in {path}\n"


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "no.yaml"
    assert refused("-f", str(path)) == f"sapwood local: {path}: No such file or directory\n"


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("-f", "examples/chat.yaml", f"--port={port}", f"--state-folder={tmp_path}")
    assert said == (
        f"sapwood local: --port: {port} cannot be used: 127.0.0.1 port {port} cannot be listened on; take another one\n"
    )


def test_a_state_folder_that_is_in_use_or_cannot_be_made_is_told(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another sapwood local uses it" in refused("-f", "examples/chat.yaml", f"--state-folder={tmp_path}")
    in_a_file = tmp_path / "lock" / "state"
    assert "name one that can be made (Not a directory)" in refused(
        "-f", "examples/chat.yaml", f"--state-folder={in_a_file}"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "the following arguments are required: -f/--file"),
        (["-f", "a", "--port=0"], "0 is not a port from 1 to 65534"),
        (["-f", "a", "--otlp-endpoint=collector:4317"], "'collector:4317' is not an address such as"),
        (["-f", "a", "--trace-sampling-ratio=nan"], "nan is not a share from 0 to 1"),
        (["-f", "a", "--volume=weights"], "'weights' is not NAME=FOLDER"),
        (["-f", "a", "--replicas=2"], "unrecognized arguments: --replicas=2"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        read_options(arguments, {})
    assert raised.value.code == 2
    assert expected in capsys.readouterr().err


def test_options_are_read() -> None:
    options = read_options(["-f", "a", "-f", "b", "--volume=weights=/data"], {"XDG_STATE_HOME": "/state"})
    assert options.files == (Path("a"), Path("b"))
    assert options.folders == {"weights": Path("/data")}
    assert options.state_folder == Path("/state/sapwood/local-8080")
    assert not [argument for argument in gateway_arguments(options, Documents()) if "otlp" in argument]


def test_the_gateway_traces_where_it_is_told_to() -> None:
    given = ["--otlp-endpoint=http://127.0.0.1:4318", "--trace-sampling-ratio=1"]
    arguments = gateway_arguments(read_options(["-f", "a", *given], {}), Documents())
    assert {"--otlp-endpoint=http://127.0.0.1:4318", "--trace-sampling-ratio=1.0"} < set(arguments)


def test_a_key_opens_the_gateways_console_where_a_service_asks_for_keys() -> None:
    options = read_options(["-f", "a", "--state-folder=/state"], {})
    spec = {"tenancy": {"authentication": "ApiKey"}}
    key = f"--admin-key-file=/state/{ADMIN_KEY_FILE}"
    assert key in gateway_arguments(options, Documents(services=({"spec": spec}, {"spec": {}})))
    assert key not in gateway_arguments(options, Documents(services=({"spec": {}},)))
