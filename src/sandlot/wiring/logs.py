"""Logs: one event per line, as text or JSON, on stderr.

Names, paths and errors in logs may come from an attacker. JSON escapes them by itself. In text, we
escape everything that could end a line, control a terminal or reorder text. We indent tracebacks,
so that no line of one looks like an event.
"""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Any

import structlog

from sandlot.domain.errors import SandlotError
from sandlot.domain.text.printable import escape_unprintable
from sandlot.wire.tracing import traces
from sandlot.wire.tracing.request_id import current_request_id

log = structlog.get_logger("sandlot.server")

_TRACES = ("exception", "stack")  # printed below their event, line by line
_INDENT = "    "


class _Verbatim:
    """A value that the renderer prints unchanged.

    structlog prints the repr of every value that is not a string, and of some strings.
    """

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown


def _escape(_logger: Any, _method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    return {name: _escape_value(name, value) for name, value in event.items()}


def _escape_value(name: str, value: object) -> object:
    if name in _TRACES:
        return "\n".join(_INDENT + escape_unprintable(line) for line in str(value).splitlines())
    if name == "event":
        return escape_unprintable(str(value))
    if isinstance(value, str):
        return value if value.isprintable() else _Verbatim(repr(value))
    return _Verbatim(escape_unprintable(repr(value)))


class _StructlogHandler(logging.Handler):
    """Forwards what libraries log with ``logging`` to structlog, as one event per line."""

    def emit(self, record: logging.LogRecord) -> None:
        write = log.error if record.levelno >= logging.ERROR else log.warning
        write(record.name, message=record.getMessage(), exc_info=record.exc_info)


def _add_ids(_logger: Any, _method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    """By which the log of one call is found in several processes."""
    if request_id := current_request_id.get():
        event.setdefault("request_id", request_id)
        if (context := traces.current()) is not None:
            event.setdefault("trace_id", context.trace_id)
    return event


def configure_logs(level: str, form: str) -> None:
    """Configure logs.

    Safe inside a user's program: it changes the loggers of no library but ``mcp``.
    """
    rendering: list[Any] = (
        [structlog.processors.JSONRenderer()]
        if form == "json"
        else [_escape, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_ids,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    library = logging.getLogger("mcp")
    library.handlers, library.propagate = [_StructlogHandler(logging.WARNING)], False


def configure_server_logs(level: str, form: str) -> None:
    """Configure logs of a server process, so that a log collector gets nothing but events.

    This includes the logs and warnings of all libraries.
    """
    configure_logs(level, form)
    logging.basicConfig(handlers=[_StructlogHandler(logging.WARNING)], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
    if form == "json":
        sys.excepthook = _log_exception


def log_exit(error: SandlotError | OSError) -> bool:
    """Log why the server exits, if logs are JSON.

    Returns false if logs are text. Then the caller prints the error for people, like any command.
    """
    if sys.excepthook is not _log_exception:
        return False
    log.error("server failed", error=error.message if isinstance(error, SandlotError) else str(error))
    return True


def _log_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Log an unexpected exception as an event."""
    log.error("server failed", exc_info=(kind, error, trace))
