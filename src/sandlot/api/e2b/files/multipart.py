"""Reads files from a multipart form while it arrives, so that no file has to be stored here.

``python_multipart`` parses. A form is a sequence of files: the next one begins when the last one has been
read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect

from sandlot.domain.errors import InvalidRequest

MAX_FILES: Final = 1000
_MAX_HEADER_BYTES: Final = 16 * 1024
_MAX_BOUNDARY_BYTES: Final = 256
# How clients write the characters that would end a quoted name.
_QUOTED: Final = (("%22", '"'), ("%0D", "\r"), ("%0A", "\n"))


@dataclass(frozen=True, slots=True)
class _Begin:
    name: str
    filename: str


@dataclass(frozen=True, slots=True)
class _End:
    pass


class FormFiles:
    """``async for`` each file's name; ``content`` then yields its bytes."""

    def __init__(self, content_type: str, chunks: AsyncIterator[bytes]) -> None:
        kind, options = parse_options_header(content_type.encode("latin-1", "replace"))
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 0 < len(boundary) <= _MAX_BOUNDARY_BYTES:
            raise InvalidRequest("Send the files as multipart/form-data, or one as application/octet-stream.")
        self._chunks = chunks
        self._found: deque[_Begin | _End | bytes] = deque()
        self._name, self._value = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._files = 0
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
            },
        )

    async def names(self) -> AsyncIterator[str]:
        """The name of each file. Read its ``content`` before you ask for the next one."""
        while (found := await self._next()) is not None:
            if isinstance(found, _Begin):
                if found.name != "file":
                    raise InvalidRequest(
                        f"Unknown form field {found.name!r:.80}. Each file is a field 'file'."
                    )
                yield found.filename

    async def content(self) -> AsyncIterator[bytes]:
        while (found := await self._next()) is not None and not isinstance(found, _End):
            assert isinstance(found, bytes)
            yield found

    async def _next(self) -> _Begin | _End | bytes | None:
        while not self._found:
            try:
                chunk = await anext(self._chunks, None)
            except ClientDisconnect:
                raise InvalidRequest("The client left before its files were complete.") from None
            try:
                if chunk is None:
                    self._parser.finalize()
                    return None
                self._parser.write(chunk)
            except FormParserError as error:
                raise InvalidRequest(f"The multipart form is malformed: {str(error)[:200]}") from None
        return self._found.popleft()

    # --- what the parser calls ------------------------------------------------------------------

    def _on_part_begin(self) -> None:
        self._headers.clear()
        self._files += 1
        if self._files > MAX_FILES:
            raise InvalidRequest(f"One request can write at most {MAX_FILES} files.")

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]
        self._check_headers()

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._check_headers()

    def _on_header_end(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()
        self._check_headers()

    def _check_headers(self) -> None:
        kept = sum(len(name) + len(value) for name, value in self._headers.items())
        if kept + len(self._name) + len(self._value) > _MAX_HEADER_BYTES:
            raise InvalidRequest("A part of the form has too long headers.")

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        filename = options.get(b"filename", b"").decode("utf-8", "surrogateescape")
        for written, meant in _QUOTED:
            filename = filename.replace(written, meant)
        self._found.append(_Begin(options.get(b"name", b"").decode("utf-8", "replace"), filename))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if end > start:
            self._found.append(data[start:end])

    def _on_part_end(self) -> None:
        self._found.append(_End())
