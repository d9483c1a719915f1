"""The operator's log. What may be logged: names of objects, reasons, counts, durations; never a Secret's content."""

from __future__ import annotations

import logging

from sapwood_logs import structured


def configure_logging(level: str) -> None:
    """Send this process's records of ``level`` and above to stderr; replaces what was configured before."""
    structured.configure_logging(level, program="operator", holds_requests=False)
    # kopf tells each watch and each event on INFO and below; what it warns of is worth a line.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # It warns at each start that signals are not for it: they are the program's, on purpose.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
