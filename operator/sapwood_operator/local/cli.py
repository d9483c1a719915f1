"""``sapwood local -f service.yaml``: the platform on this machine, from the documents that a cluster takes.

The only module that reads argv and the environment. Exit codes: 0 after a drain that a signal asked for; 2 for options
or documents that cannot be used; 128 + n when a second signal n ended it at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console

from sapwood_contract.local_state import ADMIN_KEY_FILE, DISCOVERY_FILE, state_folder
from sapwood_logs.structured import configure_logging
from sapwood_operator.errors import OperatorError, SettingsError
from sapwood_operator.local.definitions import read_definitions
from sapwood_operator.local.discovery import DiscoveryFile
from sapwood_operator.local.documents import Documents, FollowedFiles, InvalidDocuments, Reader
from sapwood_operator.local.logs import Logs
from sapwood_operator.local.news import News
from sapwood_operator.local.platform import GatewayPlace, Platform, Surroundings
from sapwood_operator.local.pod import LOOPBACK
from sapwood_operator.local.ports import is_free, new_ports
from sapwood_operator.local.processes import sapwood
from sapwood_operator.local.program import Chores, run
from sapwood_operator.local.view import Lines, LiveTable
from sapwood_operator.settings import OperatorSettings

EXIT_USAGE = 2
_OWN_LOG = "operator"
"""What the domain calls the operator's log."""
_SECRET_FILE = "installation-secret"
_EVERY_ADDRESS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that argv says."""

    files: tuple[Path, ...]
    host: str
    port: int
    folders: Mapping[str, Path]
    state_folder: Path
    is_plain: bool
    tracing: tuple[str, ...]
    """Options of the gateway."""


def main(argv: Sequence[str]) -> int:
    """Run the platform; return the exit code."""
    options = read_options(argv, os.environ)
    try:
        if sys.platform != "linux":
            raise SettingsError("system", sys.platform, "sapwood local needs Linux, which ends what it leaves behind")
        reader = Reader(options.files, read_definitions())
        documents = reader.read(Documents())
        _check_ports(options)
        with _alone_in(options.state_folder):
            return _run(options, reader, documents)
    except (InvalidDocuments, OperatorError) as error:
        for problem in str(error).splitlines():
            sys.stderr.write(f"sapwood local: {problem}\n")
        return EXIT_USAGE


def _run(options: Options, reader: Reader, documents: Documents) -> int:
    logs = Logs(options.state_folder / "logs")
    news = News(logs.folder)
    is_plain = options.is_plain or not sys.stdout.isatty()
    with contextlib.closing(Lines(news, _write) if is_plain else LiveTable(news, logs.folder, Console())) as view:
        followed = FollowedFiles(reader, documents, view.tell)
        chores = Chores(read_again=followed.read_again, bound_logs=logs.bound)
        with logs.path(_OWN_LOG).open("a", encoding="utf-8") as own:
            configure_logging("info", program="local", holds_requests=False, to=own)
            return asyncio.run(run(_platform(options, documents, logs), chores, view))


def _check_ports(options: Options) -> None:
    for host, port in ((options.host, options.port), (LOOPBACK, options.port + 1)):
        if not is_free(host, port):
            raise SettingsError("--port", port, f"{host} port {port} cannot be listened on; take another one")


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the state folder: two that write to one would undo each other's work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise SettingsError("--state-folder", str(folder), f"name one that can be made ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError("--state-folder", str(folder), "another sapwood local uses it; name another") from None
        yield


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _platform(options: Options, documents: Documents, logs: Logs) -> Platform:
    state = options.state_folder
    secret = secrets.token_hex(32)
    admin_key_file = state / ADMIN_KEY_FILE
    for path, content in ((state / _SECRET_FILE, secret), (admin_key_file, secrets.token_urlsafe(32))):
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(content)
    shown = LOOPBACK if options.host in _EVERY_ADDRESS else options.host
    return Platform(
        settings=_settings(secret.encode()),
        surroundings=Surroundings(
            num_cores=_num_cores(),
            folders=options.folders,
            environment=os.environ,
            volumes_folder=state / "volumes",
            secrets_folder=state / "secrets",
            admin_key_file=admin_key_file,
            start=lambda arguments, environment, name: sapwood(arguments, environment, logs.path(name)),
            new_ports=lambda promised: new_ports({*promised, options.port, options.port + 1}),
        ),
        gateway=GatewayPlace(
            url=f"http://{f'[{shown}]' if ':' in shown else shown}:{options.port}",
            admin_url=f"http://{LOOPBACK}:{options.port + 1}",
            arguments=gateway_arguments(options, documents),
        ),
        discovery=DiscoveryFile(state / DISCOVERY_FILE),
        documents=documents,
    )


def gateway_arguments(options: Options, documents: Documents) -> tuple[str, ...]:
    """Return what the gateway is started with.

    Its console is closed where a service asks for API keys, unless there is a key to open it.
    """
    state = options.state_folder
    asks_for_keys = any(
        service["spec"].get("tenancy", {}).get("authentication") == "ApiKey" for service in documents.services
    )
    return (
        "gateway",
        f"--host={options.host}",
        f"--port={options.port}",
        f"--discovery-file={state / DISCOVERY_FILE}",
        f"--secret-file={state / _SECRET_FILE}",
        *([f"--admin-key-file={state / ADMIN_KEY_FILE}"] if asks_for_keys else []),
        *options.tracing,
    )


def _settings(secret: bytes) -> OperatorSettings:
    """What only a cluster has has a name too, which nobody looks at."""
    return OperatorSettings(
        operator_namespace="sapwood",
        gateway_service="sapwood-gateway",
        gateway_namespace="sapwood",
        gateway_instance="sapwood",
        engine_image="this-installation",
        engine_cuda_image="this-installation",
        runbook_url="http://sapwood-operator/runbooks",
        secret=secret,
    )


def _num_cores() -> int:
    """Physical cores, but no more than this program may use: as an engine counts them."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return min(physical, len(os.sched_getaffinity(0)))


def read_options(argv: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Read argv; what cannot be used ends the program with 2."""
    given = _parser().parse_args(list(argv))
    state = given.state_folder or state_folder(environment, given.port)
    return Options(
        files=tuple(given.file),
        host=given.host,
        port=given.port,
        folders=dict(given.volume),
        state_folder=state.absolute(),
        is_plain=given.plain,
        tracing=_tracing(given.otlp_endpoint, given.trace_sampling_ratio),
    )


def _tracing(endpoint: str | None, ratio: float) -> tuple[str, ...]:
    return () if endpoint is None else (f"--otlp-endpoint={endpoint}", f"--trace-sampling-ratio={ratio}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sapwood local",
        allow_abbrev=False,
        description="Run InferenceServices on this machine: an engine a replica, and one gateway before them all.",
    )
    add = parser.add_argument
    add(
        *("-f", "--file"),
        action="append",
        type=Path,
        required=True,
        metavar="PATH",
        help="file or folder with the documents that a cluster takes; read again on change; may be repeated",
    )
    add("--host", default="127.0.0.1", help="address of the OpenAI API (default: 127.0.0.1)")
    add(
        "--port",
        type=_port,
        default=8080,
        help="its port; probes and metrics of the gateway are on the next one of 127.0.0.1 (default: 8080)",
    )
    add(
        "--volume",
        action="append",
        type=_volume,
        default=[],
        metavar="NAME=FOLDER",
        help="folder that stands for a PersistentVolumeClaim, or for a volume of podTemplate; may be repeated",
    )
    add(
        "--state-folder",
        type=Path,
        metavar="FOLDER",
        help="logs, volumes and what the programs tell each other (default: sapwood/local-PORT in XDG_STATE_HOME)",
    )
    add(
        "--otlp-endpoint",
        type=_endpoint,
        metavar="URL",
        help="OTLP receiver over HTTP for the gateway's traces; those of engines go where their documents say",
    )
    add(
        "--trace-sampling-ratio",
        type=_ratio,
        default=0.01,
        metavar="SHARE",
        help="share of the requests without a trace of their own that the gateway traces (default: 0.01)",
    )
    add("--plain", action="store_true", help="a line for each change instead of a table, as without a terminal")
    return parser


def _port(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 65_534:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 1 to 65534")
    return number


def _endpoint(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not an address such as http://127.0.0.1:4318")
    return text


def _ratio(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to 1")
    return share


def _volume(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if not name or not equals or not folder:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER")
    return name, Path(folder).expanduser().absolute()
