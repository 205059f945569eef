"""A page of a text file, taken from its bytes as they come: however long the file, little of it is held."""

from __future__ import annotations

import codecs
import io
from typing import Final

from deepagents.backends.protocol import FileData, ReadResult
from deepagents.backends.sandbox import MAX_OUTPUT_BYTES, TRUNCATION_MSG
from deepagents.backends.utils import EMPTY_CONTENT_WARNING

COUNTED_BYTES: Final = 1024 * 1024  # of a file that is longer, the lines behind the page are not counted
SCANNED_BYTES: Final = 64 * 1024 * 1024  # how far into a file a page may reach
_ROOM: Final = MAX_OUTPUT_BYTES - len(TRUNCATION_MSG)


class Page:
    """Lines from ``offset`` on (0 is the first); every kind of line end becomes one newline."""

    def __init__(self, offset: int, limit: int) -> None:
        self._offset = offset
        self._end = offset + limit
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        self._bytes = 0
        self._line = 0  # the line that is being read
        self._begun = False  # there is something of it
        self._whole: list[str] = []
        self._pending: list[str] = []  # of a line whose end has not come
        self._size = 0
        self._cut = False

    def add(self, data: bytes) -> bool:
        """False once there is no need of more."""
        self._bytes += len(data)
        self._take(self._decoder.decode(data))
        more_known = self._cut or self._line > self._end or (self._line == self._end and self._begun)
        return self._bytes < SCANNED_BYTES and not (more_known and self._bytes > COUNTED_BYTES)

    def _take(self, text: str) -> None:
        first, *others = text.split("\n")
        self._go_on(first)
        for part in others:
            if self._wanted:
                self._whole.append("".join(self._pending))
                self._pending.clear()
                self._size += 1
            self._line += 1
            self._begun = False
            self._go_on(part)

    @property
    def _wanted(self) -> bool:
        return self._offset <= self._line < self._end and not self._cut

    def _go_on(self, part: str) -> None:
        if not part:
            return
        self._begun = True
        if self._wanted:
            data = part.encode()
            self._cut = self._size + len(data) > _ROOM
            self._pending.append(
                data[: max(0, _ROOM - self._size)].decode("utf-8", "ignore") if self._cut else part
            )
            self._size += len(data)

    def result(self, path: str, *, complete: bool) -> ReadResult:
        """``complete``: the file has been read to its end."""
        if complete:
            self._take(self._decoder.decode(b"", final=True))
        if self._bytes == 0:
            return ReadResult(file_data=FileData(content=EMPTY_CONTENT_WARNING, encoding="utf-8"))
        if self._pending and not self._cut and complete:
            self._whole.append("".join(self._pending))
        total = self._line + self._begun if complete else None
        if not self._whole and not self._cut:
            return ReadResult(error=f"File '{path}': {self._nothing(total)}")
        text = "\n".join(
            [*self._whole, "".join(self._pending) + TRUNCATION_MSG] if self._cut else self._whole
        )
        # Of a line that does not fit the rest cannot be had by lines; the next page begins behind it.
        end = self._offset + max(1, len(self._whole))
        return ReadResult(
            file_data=FileData(content=text, encoding="utf-8"),
            total_lines=total,
            start_line=self._offset + 1,
            end_line=end,
            next_offset=end if total is None or end < total else None,
        )

    def _nothing(self, total: int | None) -> str:
        if total is None:
            return (
                f"line offset {self._offset} is more than {SCANNED_BYTES} bytes into the file; "
                "read it with a command, such as sed -n or tail"
            )
        return f"Line offset {self._offset} exceeds file length ({total} lines)"
