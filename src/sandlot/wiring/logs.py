"""Logs: one event a line, as text or JSON, on stderr.

Names, paths and errors in them may be a stranger's. JSON escapes these by itself. As text, whatever could
end a line, steer a terminal or reorder what is read is escaped; a traceback is indented, so that no line of
it can be taken for an event.
"""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Any

import structlog

from sandlot.domain.errors import SandlotError
from sandlot.domain.printable import harmless

log = structlog.get_logger("sandlot.server")

_TRACES = ("exception", "stack")  # printed below their event, line by line
_BELOW = "    "


class _AsItIs:
    """The renderer prints the repr of what is no text, and of text only sometimes."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown


def _escaped(_logger: Any, _method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    return {name: _harmless_value(name, value) for name, value in event.items()}


def _harmless_value(name: str, value: object) -> object:
    if name in _TRACES:
        return "\n".join(_BELOW + harmless(line) for line in str(value).splitlines())
    if name == "event":
        return harmless(str(value))
    if isinstance(value, str):
        return value if value.isprintable() else _AsItIs(repr(value))
    return _AsItIs(harmless(repr(value)))


class _AsEvents(logging.Handler):
    """What a library logs in its own way, as one event a line among ours."""

    def emit(self, record: logging.LogRecord) -> None:
        tell = log.error if record.levelno >= logging.ERROR else log.warning
        tell(record.name, message=record.getMessage(), exc_info=record.exc_info)


def configure_logs(level: str, form: str) -> None:
    """For a program of somebody else too: of libraries only those that are ours to silence are touched."""
    rendering: list[Any] = (
        [structlog.processors.JSONRenderer()]
        if form == "json"
        else [_escaped, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    library = logging.getLogger("mcp")
    library.handlers, library.propagate = [_AsEvents(logging.WARNING)], False


def configure_server_logs(level: str, form: str) -> None:
    """For a process that is ours alone: whatever writes a log, a collector gets events and nothing else."""
    configure_logs(level, form)
    logging.basicConfig(handlers=[_AsEvents(logging.WARNING)], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
    if form == "json":
        sys.excepthook = _log_end


def log_end(error: SandlotError | OSError) -> bool:
    """Why the server ends, as an event; false where people read it, who are told as by any command."""
    if sys.excepthook is not _log_end:
        return False
    log.error("the server ends", error=error.message if isinstance(error, SandlotError) else str(error))
    return True


def _log_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Of what nobody has thought of."""
    log.error("the server ends", exc_info=(kind, error, trace))
