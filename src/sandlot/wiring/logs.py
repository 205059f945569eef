"""Logs: one event a line, as text or JSON, on stderr."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

log = structlog.get_logger("sandlot.server")


class _AsEvents(logging.Handler):
    """What a library logs in its own way, as one event a line among ours."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        log.warning(record.name, message=record.getMessage(), error=None if error is None else repr(error))


def configure_logs(level: str, form: str) -> None:
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    library = logging.getLogger("mcp")
    library.handlers, library.propagate = [_AsEvents(logging.WARNING)], False
