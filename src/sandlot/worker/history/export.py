"""Exports events, for those who want them in one place: to a file of JSON lines, or to syslog.

Events are exported after they are on disk. A worker that is killed in between does not export them later.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler, SysLogHandler
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog

from sandlot.domain.history.events import Event
from sandlot.worker.history.options import HistoryOptions

log = structlog.get_logger("sandlot.history")

SYSLOG: Final = "syslog"
SYSLOG_PORT: Final = 514


class _Lines(RotatingFileHandler):
    """Only its owner can read the file. A failed write is an error and not a traceback on stderr."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return TextIOWrapper(os.fdopen(descriptor, "ab"), encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  the library's name
        raise  # noqa: PLE0704  the library calls this while it handles the error


class _Syslog(SysLogHandler):
    append_nul = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        raise  # noqa: PLE0704


class Exporter:
    """Writes events to ``target``: a file's path, or ``syslog://HOST[:PORT]`` or ``syslog:///SOCKET``.

    ``max_bytes`` and ``files``: a file is renamed to ``.1`` when it is full, and so many are kept.
    """

    def __init__(self, target: str, worker_id: str, *, max_bytes: int, files: int) -> None:
        self._target = target
        self._worker = worker_id
        self._max_bytes = max_bytes
        self._files = files
        self._handler: logging.Handler | None = None

    def write(self, events: Iterable[Event]) -> None:
        """Blocks, so call it on a thread. Raises ``OSError`` if the target takes nothing."""
        if self._handler is None:
            self._handler = _handler(self._target, self._max_bytes, self._files)
        for event in events:
            line: dict[str, Any] = {"worker": self._worker, **msgspec.to_builtins(event)}
            text = msgspec.json.encode(line).decode()
            self._handler.emit(logging.LogRecord("sandlot", logging.INFO, "", 0, text, None, None))

    def write_one(self, event: Event) -> None:
        """For a coordinator, whose few events go nowhere else. Logs what the target does not take."""
        try:
            self.write([event])
        except OSError as error:
            log.warning("cannot export an event", kind=str(event.kind), error=str(error))

    def close(self) -> None:
        if self._handler is not None:
            self._handler.close()
            self._handler = None


def exporter_for(options: HistoryOptions, target: str, worker_id: str) -> Exporter:
    return Exporter(target, worker_id, max_bytes=options.export_max_bytes, files=options.export_files)


def _handler(target: str, max_bytes: int, files: int) -> logging.Handler:
    url = urlsplit(target)
    if url.scheme != SYSLOG:
        Path(target).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _Lines(target, maxBytes=max_bytes, backupCount=files)
    if url.hostname:
        address: str | tuple[str, int] = (url.hostname, url.port or SYSLOG_PORT)
        handler = _Syslog(address, SysLogHandler.LOG_USER, socket.SOCK_DGRAM)
    else:
        handler = _Syslog(url.path, SysLogHandler.LOG_USER)
    handler.ident = "sandlot: "
    return handler
