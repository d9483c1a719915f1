"""Structured logs on stderr: JSON lines, or something to read when a person is looking.

What may be logged: request ids, counts, durations, reasons. What a client wrote or a key never is.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
from structlog.typing import Processor

_SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)


def configure_logging(level: str, *, program: str, for_people: bool | None = None) -> None:
    """Send structlog's and the standard library's records of this process to stderr, ``level`` and above.

    ``for_people``: None asks whether stderr is a terminal. Replaces what was configured before.
    """
    people = sys.stderr.isatty() if for_people is None else for_people
    renderer: list[Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if people
        else [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=list(_SHARED),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(program=program)


def logger(name: str) -> Any:
    """Return the logger of one part of the program; bind request ids to it, never prompts."""
    return structlog.stdlib.get_logger(name)
