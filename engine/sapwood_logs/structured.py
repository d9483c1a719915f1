"""Structured logs on stderr: JSON lines, or something to read when a person is looking.

Every part logs through the standard library, with what belongs to the event in ``extra``; structlog writes
it. What may be logged: request ids, counts, durations, reasons. What a client wrote, or a key, never is.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor, WrappedLogger


def configure_logging(level: str, *, program: str, for_people: bool | None = None) -> None:
    """Send this process's log records to stderr, those of ``level`` and above, marked with ``program``.

    ``for_people``: None asks whether stderr is a terminal. Replaces what was configured before.
    """

    def add_program(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["program"] = program
        return event

    people = sys.stderr.isatty() if for_people is None else for_people
    # Neither way of writing a traceback may show the frames' variables, which hold what clients wrote.
    renderer: list[Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if people
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
                add_program,
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
