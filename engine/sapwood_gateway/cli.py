"""``sapwood gateway``: one OpenAI address in front of many engines.

Exit codes: 0 after a drain that a signal asked for; 1 where the cluster cannot be asked, or after something died that
the gateway cannot do without; 2 for options that cannot be used; 128 + n when a second signal n cut the drain short.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence

import uvloop

from sapwood_gateway.shell.discovery.cluster import Api
from sapwood_gateway.shell.ending import EXIT_FAILED
from sapwood_gateway.shell.logs import configure_logging
from sapwood_gateway.shell.options import parse
from sapwood_gateway.shell.serve import Ports, run_gateway
from sapwood_gateway.shell.tenancy import UnusableOption, read_trust

EXIT_USAGE = 2

_BACKLOG = 2048


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop; return the exit code."""
    options = parse(argv)
    try:
        ports = Ports(
            api=_listen(options.host, options.port, "--port"),
            admin=_listen(options.admin_host, options.admin_port, "--admin-port"),
        )
        trust = read_trust(options)
    except (_CannotListen, UnusableOption) as error:
        return _refuse(error, EXIT_USAGE)
    configure_logging(options.log_level)
    cluster: Api | None = None
    if not options.engines and options.discovery_file is None:
        # Heavy, and not needed where engines are listed.
        from sapwood_gateway.shell.discovery.cluster_api import NoCluster, connect  # noqa: PLC0415

        try:
            cluster = connect()
        except NoCluster as error:
            return _refuse(error, EXIT_FAILED)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_gateway(options, ports, cluster, trust))


class _CannotListen(Exception):
    pass


def _refuse(error: Exception, exit_code: int) -> int:
    sys.stderr.write(f"sapwood gateway: {error}\n")
    return exit_code


def _listen(host: str, port: int, option: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        raise _CannotListen(
            f"{option}: {host} port {port} cannot be listened on ({error}); take another, or 0 for a free one"
        ) from error
