"""Structured logs on stderr: JSON lines, or something to read when a person is looking.

Every part logs through the standard library, with what belongs to the event in ``extra``. What may be logged: request
ids, names of services and replicas, counts, durations, reasons. What a client wrote, or a key, never is.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import Processor


def configure_logging(level: str) -> None:
    """Send this process's log records of ``level`` and above to stderr. Replaces what was configured before."""
    # Neither way of writing a traceback may show the frames' variables, which hold what clients wrote.
    renderer: list[Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if sys.stderr.isatty()
        else [
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # urllib3 warns of every lost connection to the cluster's API, and would print its address.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
