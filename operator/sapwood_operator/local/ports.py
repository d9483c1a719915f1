"""Ports for servers that start later: nobody listens there, and no connection leaves from there.

One that the system would give to a connection can be taken by somebody who asks whether the server answers yet: he
would be connected to himself, and the server find its port taken.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from sapwood_operator.local.pod import Ports

_FIRST, _EPHEMERAL = 15_000, 30_000
_LOOPBACK = "127.0.0.1"


def new_ports(promised: Collection[int]) -> Ports:
    """Return two free ports next to each other, none of them ``promised`` to somebody who does not listen yet."""
    while True:
        both = (first := random.randrange(_FIRST, _EPHEMERAL), first + 1)
        if not any(port in promised for port in both) and all(is_free(_LOOPBACK, port) for port in both):
            return Ports(http=both[0], admin=both[1])


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except OSError:
        return False
    return True
