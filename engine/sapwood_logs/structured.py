"""Structured logs on stderr: JSON lines, or something to read when a person is looking.

Every part logs through the standard library, with what belongs to the event in ``extra``; structlog writes
it. What may be logged: request ids, counts, durations, reasons. What a client wrote, or a key, never is.

What a task has bound with `structlog.contextvars` stands in each of its records, a library's too: the id of the request
that it answers, and of the trace that the request belongs to. `docs/metrics.md` lists the fields.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from sapwood_logs.faults import Faults


def configure_logging(
    level: str,
    *,
    program: str,
    for_people: bool | None = None,
    holds_requests: bool = True,
    to: TextIO | None = None,
) -> None:
    """Send this process's log records ``to`` stderr or another file, those of ``level`` and above, marked with
    ``program``.

    ``for_people``: None asks whether it is a terminal. ``holds_requests``: whether an exception may quote what a
    client wrote (`faults`). What Python warns of is logged too. Replaces what was configured before.
    """
    output = to or sys.stderr

    def add_program(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["program"] = program
        return event

    people = output.isatty() if for_people is None else for_people
    faults = Faults(hides_messages=holds_requests)
    renderer: list[Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=faults.write)]
        if people
        else [structlog.processors.ExceptionRenderer(faults), structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.contextvars.merge_contextvars,
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                add_program,
                *([_without_objects] if holds_requests else []),
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)


def _without_objects(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Cut from what asyncio tells of a failed task or callback the objects, which it writes out with what they hold."""
    if event["logger"] == "asyncio":
        event["event"] = event["event"].partition("\n")[0].partition("(")[0]
    return event
