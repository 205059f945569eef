"""The backend's file operations, on the session's file API. They need no program in the image."""

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
from sandlot.integrations.deepagents.artifacts import sandbox_path
from sandlot.integrations.deepagents.operation import Operation, file_error, normalized_path
from sandlot.integrations.deepagents.text_page import TextPage
from sandlot.integrations.langgraph_thread import current_task
from sandlot.integrations.toolbox.answer import encode_utf8
from sandlot.integrations.toolbox.edits import EditRecord

MAX_EDIT_BYTES: Final = 16 * 1024 * 1024
MAX_DOWNLOAD_BYTES: Final = 100 * 1024 * 1024  # per file
MAX_TRANSFERS: Final = 4  # concurrent transfers per call
SNIFFED_BYTES: Final = 8 * 1024
MAX_QUOTED_CHARACTERS: Final = 200  # of a text that was not found, in an error

# The framework passes these to a model as media and expects base64, whatever their content.
_MEDIA: Final = re.compile(
    r"\.(png|jpe?g|webp|gif|hei[cf]|mp4|mpe?g|mov|avi|flv|webm|wmv|3gpp|mkv|wav|mp3|aiff|aac|ogg|flac|pdf|pptx?)",
    re.IGNORECASE,
)


def ls(path: str) -> Operation[LsResult]:
    async def work(session: AsyncSession) -> LsResult:
        folder = path.rstrip("/")
        entries = await session.files.list(sandbox_path(normalized_path(path)))
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
        # Two codes differ from those for files. The framework's permission checks use the second.
        codes = {"not_found": "path_not_found", "not_a_directory": "not_a_directory"}
        code = codes.get(error.reason) if isinstance(error, FileProblem) else None
        return LsResult(error=f"Path '{path}': {code or file_error(error)}")

    return Operation(work, failed)


def read(path: str, offset: int, limit: int) -> Operation[ReadResult]:
    offset, limit = normalize_read_bounds(offset, limit)

    async def work(session: AsyncSession) -> ReadResult:
        in_sandbox = sandbox_path(normalized_path(path))
        if _MEDIA.fullmatch(PurePosixPath(path).suffix):
            return await _read_base64(session.files, in_sandbox, path)
        page, complete, first = TextPage(offset, limit), True, True
        async for chunk in session.files.stream(in_sandbox):
            if first and not _is_text(chunk[:SNIFFED_BYTES]):
                return await _read_base64(session.files, in_sandbox, path)
            if limit == 0:
                nothing = FileData(content="", encoding="utf-8")
                return ReadResult(file_data=nothing, no_lines_requested=True)
            first = False
            if not page.add(chunk):
                complete = False
                break
        return page.result(path, complete=complete)

    return Operation(work, lambda error: ReadResult(error=f"File '{path}': {file_error(error)}"))


async def _read_base64(files: AsyncFiles, in_sandbox: str, path: str) -> ReadResult:
    try:
        content = await files.read(in_sandbox, max_bytes=MAX_BINARY_BYTES)
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
        # A character that is cut off at the end has at most three bytes left.
        return error.reason == "unexpected end of data" and error.start >= len(start) - 3
    return True


def write(path: str, content: str) -> Operation[WriteResult]:
    async def work(session: AsyncSession) -> WriteResult:
        await session.files.write(sandbox_path(normalized_path(path)), encode_utf8(content, "the content"))
        return WriteResult(path=path)

    return Operation(
        work, lambda error: WriteResult(error=f"Failed to write file '{path}': {file_error(error)}")
    )


def edit(path: str, old: str, new: str, replace_all: bool) -> Operation[EditResult]:
    """Replace text in a file. A step that is repeated after a crash does not edit twice."""
    task = current_task()

    async def work(session: AsyncSession) -> EditResult:
        if not old:
            return EditResult(error=EMPTY_OLD_STRING_ERROR)
        in_sandbox = sandbox_path(normalized_path(path))
        # Work on bytes, so that other parts of the file that are not UTF-8 stay unchanged.
        before = await session.files.read(in_sandbox, max_bytes=MAX_EDIT_BYTES)
        old_bytes, new_bytes = encode_utf8(old, "old_string"), encode_utf8(new, "new_string")
        # read() returns only newlines, but the file may have other line endings.
        styles = (bytes, _with_crlf, _with_lf)
        style = next((style for style in styles if style(old_bytes) in before), None)
        if style is None:
            return EditResult(error=f"Error: String not found in file: '{_quoted(old)}'")
        count = before.count(style(old_bytes))
        if count > 1 and not replace_all:
            return EditResult(
                error=f"Error: String '{_quoted(old)}' appears multiple times ({count}). Use "
                "replace_all=True to replace all occurrences, or include more of the surrounding text."
            )
        after = before.replace(style(old_bytes), style(new_bytes))
        if task is not None and style(old_bytes) in after:  # repeated, it would edit its own result
            record = EditRecord(session, task, in_sandbox, str(replace_all), old, new)
            if (replaced := await record.replaced_count(before)) is not None:
                return EditResult(path=path, occurrences=replaced)
            await record.save(after, count)
        await session.files.write(in_sandbox, after)
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
    return text if len(text) <= MAX_QUOTED_CHARACTERS else f"{text[:MAX_QUOTED_CHARACTERS]}…"


def delete(path: str) -> Operation[DeleteResult]:
    async def work(session: AsyncSession) -> DeleteResult:
        await session.files.remove(sandbox_path(normalized_path(path)), recursive=True)
        return DeleteResult(path=path)

    def failed(error: SandlotError) -> DeleteResult:
        if isinstance(error, FileProblem) and error.reason == "not_found":
            return DeleteResult(error=f"Error: '{path}' not found")
        return DeleteResult(error=f"Error deleting '{path}': {file_error(error)}")

    return Operation(work, failed)


def upload(files: Sequence[tuple[str, bytes]]) -> Operation[list[FileUploadResponse]]:
    async def work(session: AsyncSession) -> list[FileUploadResponse]:
        slots = asyncio.Semaphore(MAX_TRANSFERS)

        async def transfer(path: str, content: bytes) -> FileUploadResponse:
            try:
                async with slots:
                    await session.files.write(sandbox_path(normalized_path(path)), content)
            except SandlotError as error:
                return FileUploadResponse(path=path, error=file_error(error))
            return FileUploadResponse(path=path)

        return await asyncio.gather(*(transfer(path, content) for path, content in files))

    return Operation(
        work, lambda error: [FileUploadResponse(path=path, error=file_error(error)) for path, _ in files]
    )


def download(paths: Sequence[str]) -> Operation[list[FileDownloadResponse]]:
    async def work(session: AsyncSession) -> list[FileDownloadResponse]:
        slots = asyncio.Semaphore(MAX_TRANSFERS)

        async def transfer(path: str) -> FileDownloadResponse:
            try:
                async with slots:
                    content = await session.files.read(
                        sandbox_path(normalized_path(path)), max_bytes=MAX_DOWNLOAD_BYTES
                    )
            except SandlotError as error:
                return FileDownloadResponse(path=path, error=file_error(error))
            return FileDownloadResponse(path=path, content=content)

        return await asyncio.gather(*(transfer(path) for path in paths))

    return Operation(
        work, lambda error: [FileDownloadResponse(path=path, error=file_error(error)) for path in paths]
    )
