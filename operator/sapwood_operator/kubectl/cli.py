"""``kubectl sapwood status|explain|what-if|tree|logs NAME``: kubectl runs this program for any command that begins so.

Exit codes: 0; 1 for a service, a log or a cluster that cannot be read; 2 for a command line that cannot be used.
"""

from __future__ import annotations

import argparse
import re
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from kubernetes.client import ApiClient

from sapwood_operator.adapters.access import find_access
from sapwood_operator.adapters.cluster import Cluster
from sapwood_operator.adapters.scaling_port import memory_of, replicas_of
from sapwood_operator.errors import OperatorError
from sapwood_operator.kubectl.explain import render_explain
from sapwood_operator.kubectl.logs import Follower, NotAllowed, prefixed, stream, writes_logs
from sapwood_operator.kubectl.operator_port import DEFAULT_OPERATOR, ask_what_if, read_operator
from sapwood_operator.kubectl.picture import JsonObject
from sapwood_operator.kubectl.reading import CannotRead, exists, read_picture, read_pods, read_service
from sapwood_operator.kubectl.status import render_status
from sapwood_operator.kubectl.tree import render_tree
from sapwood_operator.kubectl.what_if import render_what_if

EXIT_FAILED = 1
T = TypeVar("T")
_TIMEOUT_SECONDS = 30.0
_CONNECTIONS = 64
"""Pods whose logs can be followed at once."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; ``argv``: None takes the process's own."""
    options = build_parser().parse_args(argv)
    try:
        return _run(options)
    except OperatorError as error:
        sys.stderr.write(f"kubectl sapwood: {error}\n")
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 0


def _run(options: argparse.Namespace) -> int:
    access = find_access(options.kubeconfig, options.context)
    client = access.client(connections=_CONNECTIONS)
    cluster = Cluster(client, request_timeout_seconds=_TIMEOUT_SECONDS, on_write=lambda _kind, _verb: None)
    namespace = options.namespace or access.context_namespace
    if options.command == "logs":
        return _logs(client, cluster, namespace, options)
    if options.command == "what-if":
        return _what_if(client, namespace, options)
    picture = read_picture(cluster, namespace, options.name)
    match options.command:
        case "status":
            sys.stdout.write(render_status(picture))
        case "explain":
            sys.stdout.write(render_explain(picture, now=datetime.now(UTC)))
        case "tree":
            sys.stdout.write(render_tree(picture, now=datetime.now(UTC)))
    return 0


def _what_if(client: ApiClient, namespace: str, options: argparse.Namespace) -> int:
    query = {"namespace": namespace, "name": options.name}
    query |= {"replicas": str(options.replicas), "memory": f"{options.memory:f}"}
    sys.stdout.write(render_what_if(options.name, ask_what_if(client, options.operator, query)))
    return 0


class _LogWriter:
    """Writes logs of pods to stdout, whole lines, and to stderr why one cannot be read. For several threads at once."""

    def __init__(self, client: ApiClient, options: argparse.Namespace) -> None:
        self._client = client
        self._options = options
        self._lock = threading.Lock()
        self.failures: list[CannotRead] = []

    @property
    def is_refused(self) -> bool:
        """Whether the person may not read logs."""
        return any(isinstance(failure, NotAllowed) for failure in self.failures)

    def show(self, pod: JsonObject) -> None:
        """Write one pod's log to its end."""
        chunks = stream(self._client, pod, follow=self._options.follow, tail_lines=self._options.tail)
        try:
            for line in prefixed(pod["metadata"]["name"], self._options.name, chunks):
                with self._lock:
                    sys.stdout.write(line + "\n")
                    sys.stdout.flush()
        except CannotRead as error:  # the other pods' logs go on
            self.failures.append(error)
            sys.stderr.write(f"kubectl sapwood: {error}\n")


def _logs(client: ApiClient, cluster: Cluster, namespace: str, options: argparse.Namespace) -> int:
    read_service(cluster, namespace, options.name)
    pods = read_pods(cluster, namespace, options.name)
    writer = _LogWriter(client, options)
    if not options.follow:
        for pod in filter(writes_logs, pods):
            writer.show(pod)
        return EXIT_FAILED if writer.failures else 0

    def pods_now() -> list[JsonObject]:
        try:
            return [] if writer.is_refused else read_pods(cluster, namespace, options.name)
        except CannotRead:  # a server that is away for a moment ends nothing
            return []

    Follower(pods_now, writer.show, lambda: writer.is_refused or not exists(cluster, namespace, options.name)).run()
    return EXIT_FAILED if writer.is_refused else 0


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name: give lower case letters, digits and '-'")
    return text


def _stated(read: Callable[[str], T]) -> Callable[[str], T]:
    """Have argparse say what ``read`` says of a text that it does not take."""

    def reads(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return reads


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="kubectl sapwood", description="Look at InferenceServices.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    summaries = {
        "status": "conditions, replicas and address",
        "explain": "why a service is not ready, what to do, how it scales, and what happened last",
        "what-if": "what another number of replicas, or more memory, would do with the load that there is",
        "tree": "what the service owns, down to the pods",
        "logs": "logs of every engine",
    }
    for command, summary in summaries.items():
        sub = commands.add_parser(command, help=summary, description=summary, allow_abbrev=False)
        sub.add_argument("name", type=_name, help="name of the InferenceService")
        sub.add_argument("-n", "--namespace", type=_name, help="default: the context's")
        sub.add_argument("--context", help="context of the kubeconfig")
        sub.add_argument("--kubeconfig", help="default: KUBECONFIG, else the usual file")
        if command == "logs":
            sub.add_argument(
                "-f",
                "--follow",
                action="store_true",
                help="go on, with pods that start later too, until the service is gone",
            )
            sub.add_argument("--tail", type=int, help="this many of the last lines of each pod")
        if command == "what-if":
            sub.add_argument("--replicas", type=_stated(replicas_of), required=True, metavar="N")
            sub.add_argument(
                "--memory", type=_stated(memory_of), default=1.0, metavar="X", help="times the KV memory of a replica"
            )
            sub.add_argument(
                "--operator",
                type=_stated(read_operator),
                default=DEFAULT_OPERATOR,
                metavar="NAMESPACE/SERVICE",
                help=f"the operator's Service; default: {DEFAULT_OPERATOR}",
            )
    return parser


if __name__ == "__main__":
    sys.exit(main())
