"""A page of a text file, cut from a stream of bytes. Memory use does not grow with the file."""

from __future__ import annotations

import codecs
import io
from typing import Final

from deepagents.backends.protocol import FileData, ReadResult
from deepagents.backends.sandbox import MAX_OUTPUT_BYTES, TRUNCATION_MSG
from deepagents.backends.utils import EMPTY_CONTENT_WARNING

LINE_COUNT_BYTES: Final = 1024 * 1024  # in a longer file, the lines after the page are not counted
MAX_SCAN_BYTES: Final = 64 * 1024 * 1024  # how far into a file a page may start or end
_MAX_CONTENT_BYTES: Final = MAX_OUTPUT_BYTES - len(TRUNCATION_MSG)


class TextPage:
    """At most ``limit`` lines from ``offset`` (0 is the first). All line ends become newlines."""

    def __init__(self, offset: int, limit: int) -> None:
        self._offset = offset
        self._end = offset + limit
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        self._bytes_read = 0
        self._line = 0  # the index of the current line
        self._line_started = False  # the current line has content
        self._lines: list[str] = []
        self._pending: list[str] = []  # parts of a line that is not complete yet
        self._size = 0
        self._truncated = False

    def add(self, data: bytes) -> bool:
        """Add bytes; return False when no more are needed."""
        self._bytes_read += len(data)
        self._add_text(self._decoder.decode(data))
        more_known = (
            self._truncated or self._line > self._end or (self._line == self._end and self._line_started)
        )
        return self._bytes_read < MAX_SCAN_BYTES and not (more_known and self._bytes_read > LINE_COUNT_BYTES)

    def _add_text(self, text: str) -> None:
        first, *others = text.split("\n")
        self._add_to_line(first)
        for part in others:
            if self._in_page:
                self._lines.append("".join(self._pending))
                self._pending.clear()
                self._size += 1
            self._line += 1
            self._line_started = False
            self._add_to_line(part)

    @property
    def _in_page(self) -> bool:
        return self._offset <= self._line < self._end and not self._truncated

    def _add_to_line(self, part: str) -> None:
        if not part:
            return
        self._line_started = True
        if self._in_page:
            data = part.encode()
            self._truncated = self._size + len(data) > _MAX_CONTENT_BYTES
            self._pending.append(
                data[: max(0, _MAX_CONTENT_BYTES - self._size)].decode("utf-8", "ignore")
                if self._truncated
                else part
            )
            self._size += len(data)

    def result(self, path: str, *, complete: bool) -> ReadResult:
        """The page. ``complete`` means that the whole file was read."""
        if complete:
            self._add_text(self._decoder.decode(b"", final=True))
        if self._bytes_read == 0:
            return ReadResult(file_data=FileData(content=EMPTY_CONTENT_WARNING, encoding="utf-8"))
        if self._pending and not self._truncated and complete:
            self._lines.append("".join(self._pending))
        total = self._line + self._line_started if complete else None
        if not self._lines and not self._truncated:
            return ReadResult(error=f"File '{path}': {self._no_lines_error(total)}")
        text = "\n".join(
            [*self._lines, "".join(self._pending) + TRUNCATION_MSG] if self._truncated else self._lines
        )
        # A page cannot start inside a line, so the rest of a truncated line is skipped.
        end = self._offset + max(1, len(self._lines))
        return ReadResult(
            file_data=FileData(content=text, encoding="utf-8"),
            total_lines=total,
            start_line=self._offset + 1,
            end_line=end,
            next_offset=end if total is None or end < total else None,
        )

    def _no_lines_error(self, total: int | None) -> str:
        if total is None:
            return (
                f"line offset {self._offset} is more than {MAX_SCAN_BYTES} bytes into the file. Read "
                "it with a command such as sed -n or tail."
            )
        return f"Line offset {self._offset} exceeds file length ({total} lines)"
