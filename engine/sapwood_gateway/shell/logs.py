"""The gateway's log. What may be logged: request ids, names of services and replicas, counts, durations, reasons."""

from __future__ import annotations

import logging

from sapwood_logs import structured


def configure_logging(level: str) -> None:
    """Send this process's log records of ``level`` and above to stderr. Replaces what was configured before."""
    structured.configure_logging(level, program="gateway")
    # urllib3 warns of every lost connection to the cluster's API, and would print its address.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    # aiohttp logs every head that it cannot read, with what the client wrote. Faults of our own `app` logs.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
