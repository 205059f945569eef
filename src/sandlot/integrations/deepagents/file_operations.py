"""The backend's file operations, over the files of a session: the image needs no program for them."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Final

from deepagents.backends.protocol import (
    DeleteResult,
    EditResult,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.sandbox import MAX_BINARY_BYTES
from deepagents.backends.utils import EMPTY_OLD_STRING_ERROR, normalize_read_bounds

from sandlot.client.async_files import AsyncFiles
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import FileProblem, SandlotError
from sandlot.domain.files import FileType
from sandlot.integrations.deepagents.artifacts import real_path
from sandlot.integrations.deepagents.operation import Operation, absolute, file_error
from sandlot.integrations.deepagents.reading import Page
from sandlot.integrations.langgraph_thread import current_task
from sandlot.integrations.toolbox.answer import utf8
from sandlot.integrations.toolbox.edits import Edit

EDITED_BYTES: Final = 16 * 1024 * 1024
DOWNLOADED_BYTES: Final = 100 * 1024 * 1024  # of one file
AT_ONCE: Final = 4  # transfers of one call
SNIFFED_BYTES: Final = 8 * 1024
QUOTED_CHARACTERS: Final = 200  # of a text that was not found

# What the framework hands to a model as media: it wants these in base64, whatever is in them.
_MEDIA: Final = re.compile(
    r"\.(png|jpe?g|webp|gif|hei[cf]|mp4|mpe?g|mov|avi|flv|webm|wmv|3gpp|mkv|wav|mp3|aiff|aac|ogg|flac|pdf|pptx?)",
    re.IGNORECASE,
)


def ls(path: str) -> Operation[LsResult]:
    async def work(session: AsyncSession) -> LsResult:
        folder = path.rstrip("/")
        entries = await session.files.list(real_path(absolute(path)))
        return LsResult(
            entries=[
                FileInfo(
                    path=f"{folder}/{entry.name}",
                    is_dir=entry.type is FileType.DIRECTORY,
                    size=entry.size,
                    modified_at=datetime.fromtimestamp(entry.mtime_ms / 1000, UTC).isoformat(),
                )
                for entry in entries
            ]
        )

    def failed(error: SandlotError) -> LsResult:
        # Two words that differ from those for files; the framework's permission checks read the second.
        words = {"not_found": "path_not_found", "not_a_directory": "not_a_directory"}
        word = words.get(error.reason) if isinstance(error, FileProblem) else None
        return LsResult(error=f"Path '{path}': {word or file_error(error)}")

    return Operation(work, failed)


def read(path: str, offset: int, limit: int) -> Operation[ReadResult]:
    offset, limit = normalize_read_bounds(offset, limit)

    async def work(session: AsyncSession) -> ReadResult:
        real = real_path(absolute(path))
        if _MEDIA.fullmatch(PurePosixPath(path).suffix):
            return await _encoded(session.files, real, path)
        page, complete, first = Page(offset, limit), True, True
        async for piece in session.files.stream(real):
            if first and not _is_text(piece[:SNIFFED_BYTES]):
                return await _encoded(session.files, real, path)
            if limit == 0:
                nothing = FileData(content="", encoding="utf-8")
                return ReadResult(file_data=nothing, no_lines_requested=True)
            first = False
            if not page.add(piece):
                complete = False
                break
        return page.result(path, complete=complete)

    return Operation(work, lambda error: ReadResult(error=f"File '{path}': {file_error(error)}"))


async def _encoded(files: AsyncFiles, real: str, path: str) -> ReadResult:
    try:
        content = await files.read(real, max_bytes=MAX_BINARY_BYTES)
    except FileProblem as problem:
        if problem.reason != "too_large":
            raise
        too_large = f"Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes"
        return ReadResult(error=f"File '{path}': {too_large}")
    return ReadResult(
        file_data=FileData(content=base64.b64encode(content).decode("ascii"), encoding="base64")
    )


def _is_text(start: bytes) -> bool:
    try:
        start.decode()
    except UnicodeDecodeError as error:
        # A character that is cut off at the end has at most three bytes there.
        return error.reason == "unexpected end of data" and error.start >= len(start) - 3
    return True


def write(path: str, content: str) -> Operation[WriteResult]:
    async def work(session: AsyncSession) -> WriteResult:
        await session.files.write(real_path(absolute(path)), utf8(content, "the content"))
        return WriteResult(path=path)

    return Operation(
        work, lambda error: WriteResult(error=f"Failed to write file '{path}': {file_error(error)}")
    )


def edit(path: str, old: str, new: str, replace_all: bool) -> Operation[EditResult]:
    """Done once by one step of a run, also if the step is executed again after a crash."""
    task = current_task()

    async def work(session: AsyncSession) -> EditResult:
        if not old:
            return EditResult(error=EMPTY_OLD_STRING_ERROR)
        real = real_path(absolute(path))
        # Bytes throughout, so that what is not UTF-8 elsewhere in the file stays as it is.
        before = await session.files.read(real, max_bytes=EDITED_BYTES)
        wanted, instead = utf8(old, "old_string"), utf8(new, "new_string")
        # What read() shows has newlines alone; the file may have another kind of line end.
        styles = (bytes, _with_crlf, _with_lf)
        style = next((style for style in styles if style(wanted) in before), None)
        if style is None:
            return EditResult(error=f"Error: String not found in file: '{_quoted(old)}'")
        count = before.count(style(wanted))
        if count > 1 and not replace_all:
            return EditResult(
                error=f"Error: String '{_quoted(old)}' appears multiple times ({count}). "
                "Use replace_all=True to replace all occurrences, or give more of the text around it."
            )
        after = before.replace(style(wanted), style(instead))
        if task is not None and style(wanted) in after:  # done again, it would go on from its own result
            edit = Edit(session, task, real, str(replace_all), old, new)
            if (done := await edit.replaced(before)) is not None:
                return EditResult(path=path, occurrences=done)
            await edit.note(after, count)
        await session.files.write(real, after)
        return EditResult(path=path, occurrences=count)

    def failed(error: SandlotError) -> EditResult:
        if isinstance(error, FileProblem) and error.reason == "not_found":
            return EditResult(error=f"Error: File '{path}' not found")
        return EditResult(error=f"Error editing file '{path}': {file_error(error)}")

    return Operation(work, failed)


def _with_lf(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n")


def _with_crlf(text: bytes) -> bytes:
    return _with_lf(text).replace(b"\n", b"\r\n")


def _quoted(text: str) -> str:
    return text if len(text) <= QUOTED_CHARACTERS else f"{text[:QUOTED_CHARACTERS]}…"


def delete(path: str) -> Operation[DeleteResult]:
    async def work(session: AsyncSession) -> DeleteResult:
        await session.files.remove(real_path(absolute(path)), recursive=True)
        return DeleteResult(path=path)

    def failed(error: SandlotError) -> DeleteResult:
        if isinstance(error, FileProblem) and error.reason == "not_found":
            return DeleteResult(error=f"Error: '{path}' not found")
        return DeleteResult(error=f"Error deleting '{path}': {file_error(error)}")

    return Operation(work, failed)


def upload(files: Sequence[tuple[str, bytes]]) -> Operation[list[FileUploadResponse]]:
    async def work(session: AsyncSession) -> list[FileUploadResponse]:
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(path: str, content: bytes) -> FileUploadResponse:
            try:
                async with turn:
                    await session.files.write(real_path(absolute(path)), content)
            except SandlotError as error:
                return FileUploadResponse(path=path, error=file_error(error))
            return FileUploadResponse(path=path)

        return await asyncio.gather(*(one(path, content) for path, content in files))

    return Operation(
        work, lambda error: [FileUploadResponse(path=path, error=file_error(error)) for path, _ in files]
    )


def download(paths: Sequence[str]) -> Operation[list[FileDownloadResponse]]:
    async def work(session: AsyncSession) -> list[FileDownloadResponse]:
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(path: str) -> FileDownloadResponse:
            try:
                async with turn:
                    content = await session.files.read(real_path(absolute(path)), max_bytes=DOWNLOADED_BYTES)
            except SandlotError as error:
                return FileDownloadResponse(path=path, error=file_error(error))
            return FileDownloadResponse(path=path, content=content)

        return await asyncio.gather(*(one(path) for path in paths))

    return Operation(
        work, lambda error: [FileDownloadResponse(path=path, error=file_error(error)) for path in paths]
    )
