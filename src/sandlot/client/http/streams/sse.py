"""Parses server-sent events. Thirty lines of code here save users one more package to install.

The size of an event is bounded, because its content comes from a sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandlot.domain.errors import TooLarge

# A server sends pieces of about 64 KiB, and JSON may make them six times as long. This is far more.
MAX_EVENT_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One server-sent event."""

    name: str
    data: bytes


class EventParser:
    """Takes bytes in pieces of any size and returns the complete events."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._line = bytearray()  # the start of a line that is not complete yet
        self._after_cr = False  # a line feed now would belong to the carriage return before it
        self._first = True
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        if not chunk:
            return []
        if self._after_cr:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        events = []
        for piece in chunk.splitlines(keepends=True):
            self._size += len(piece)
            if self._size > self._max:
                raise TooLarge(f"The server sent an event of more than {self._max} bytes.")
            if not piece.endswith((b"\n", b"\r")):
                self._line += piece
                continue
            self._after_cr = piece.endswith(b"\r")
            line = bytes(self._line) + piece.rstrip(b"\r\n")
            self._line.clear()
            if (event := self._take(line)) is not None:
                events.append(event)
        # Only a carriage return at the end of a chunk can still get its line feed.
        self._after_cr = self._after_cr and chunk.endswith(b"\r")
        return events

    def _take(self, line: bytes) -> ServerEvent | None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            event = ServerEvent(self._name or "message", b"\n".join(self._data)) if self._data else None
            self._name, self._data, self._size = "", [], 0
            return event
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        return None
