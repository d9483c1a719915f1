"""JSON lines on stderr. What may be logged: names of objects, reasons, counts, durations; never a Secret's content."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer


def configure_logging(level: str) -> None:
    """Send this process's records of ``level`` and above to stderr; replaces what was configured before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # kopf tells each watch and each event on INFO and below; what it warns of is worth a line.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # It warns at each start that signals are not for it: they are the program's, on purpose.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
