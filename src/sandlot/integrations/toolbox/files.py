"""File operations: read with line numbers, write, edit, list, search, upload and download."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from typing import Final

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import FileProblem, InvalidRequest
from sandlot.domain.files import FileEntry, FileType
from sandlot.integrations.model_text import DEFAULT_CHARACTERS
from sandlot.integrations.toolbox.answer import Answer, encode_utf8, toolbox_operation
from sandlot.integrations.toolbox.edits import EditRecord

MAX_LINES: Final = 2000  # in one read
MAX_LINE_CHARACTERS: Final = 2000  # a longer line is data rather than text
MAX_EDIT_BYTES: Final = 10 * 1024 * 1024
MAX_DOWNLOAD_BYTES: Final = 10 * 1024 * 1024
MAX_ENTRIES: Final = 1000
MAX_MATCHES: Final = 200
SNIFFED_BYTES: Final = 8 * 1024  # checked to tell text from binary content


@toolbox_operation
async def read_file(
    session: AsyncSession,
    path: str,
    *,
    offset: int = 0,
    lines: int = MAX_LINES,
    limit: int = DEFAULT_CHARACTERS,
) -> Answer:
    """Read lines from ``offset`` (0 is the first). The line numbers start at 1, as in editors."""
    if offset < 0 or lines < 1:
        raise InvalidRequest("offset must be 0 or more, and lines at least 1.")
    page = _Page(offset, min(lines, MAX_LINES), limit)
    pending, first = b"", True
    async for chunk in session.files.stream(path):
        if first and b"\0" in chunk[:SNIFFED_BYTES]:
            entry = await session.files.stat(path)
            text = f"[{path} is not a text file ({entry.size} bytes); open it with a program, or download it]"
            return Answer(text, {"path": path, "binary": True, "size": entry.size}, failed=True)
        first = False
        *whole, pending = (pending + chunk).split(b"\n")
        if not all(page.add(line) for line in whole):
            break
        if len(pending) > 4 * MAX_LINE_CHARACTERS:
            # This much is enough to show. An endless line must not fill the memory.
            pending = pending[: 4 * MAX_LINE_CHARACTERS]
    else:
        if pending:
            page.add(pending)
    return page.answer(path)


class _Page:
    """The requested lines, as many as fit."""

    def __init__(self, offset: int, lines: int, limit: int) -> None:
        self._offset = offset
        self._end = offset + lines
        self._characters_left = limit
        self._lines_read = 0
        self._lines: list[str] = []
        self._has_more = False

    def add(self, line: bytes) -> bool:
        """Add a line; return False when no more lines are needed."""
        number = self._lines_read
        self._lines_read += 1
        if number < self._offset:
            return True
        text = line.decode("utf-8", "replace").removesuffix("\r")
        if len(text) > MAX_LINE_CHARACTERS:
            text = text[:MAX_LINE_CHARACTERS] + " [… line cut …]"
        numbered = f"{number + 1:6}\t{text}"
        if number >= self._end or (self._lines and len(numbered) > self._characters_left):
            self._has_more = True
            return False
        self._lines.append(numbered)
        self._characters_left -= len(numbered) + 1
        return True

    def answer(self, path: str) -> Answer:
        next_offset = self._offset + len(self._lines)
        data = {
            "path": path,
            "lines": len(self._lines),
            "next_offset": next_offset if self._has_more else None,
        }
        if not self._lines:
            if self._lines_read == 0:
                return Answer("(empty file)", data)
            return Answer(f"[{path} has only {self._lines_read} lines]", data, failed=True)
        text = "\n".join(self._lines)
        return Answer(
            (f"{text}\n[there is more; continue with offset={next_offset}]") if self._has_more else text, data
        )


@toolbox_operation
async def write_file(session: AsyncSession, path: str, content: str) -> Answer:
    """Write a text file, replacing its content."""
    entry = await session.files.write(path, encode_utf8(content, "the content"))
    return Answer(f"[wrote {entry.size} bytes to {entry.path}]", _entry_data(entry))


@toolbox_operation
async def edit_file(
    session: AsyncSession,
    path: str,
    old: str,
    new: str,
    *,
    replace_all: bool = False,
    call_id: str | None = None,
) -> Answer:
    """Replace ``old`` with ``new``. ``old`` must occur exactly once, unless ``replace_all`` is set.

    ``call_id`` identifies the call: a repeated call does not apply its edit again.
    """
    if not old:
        raise InvalidRequest("old is empty. Give the text to replace, or use write_file to create a file.")
    if old == new:
        raise InvalidRequest("old and new are the same, so there is nothing to change.")
    # Work on bytes, so that other parts of the file that are not UTF-8 stay unchanged.
    old_bytes, new_bytes = encode_utf8(old, "old"), encode_utf8(new, "new")
    before = await session.files.read(path, max_bytes=MAX_EDIT_BYTES)
    record = EditRecord(session, call_id, path, old, new) if call_id else None
    if record is not None and await record.replaced_count(before) is not None:
        return Answer(f"[replaced in {path}]", {"path": path, "size": len(before)})
    count = before.count(old_bytes)
    if count == 0:
        raise InvalidRequest(f"old was not found in {path}. Read the file and copy the text exactly.")
    if count > 1 and not replace_all:
        raise InvalidRequest(f"old occurs {count} times in {path}. Include more context, or set replace_all.")
    mode = (await session.files.stat(path)).mode & 0o777
    after = before.replace(old_bytes, new_bytes)
    if record is not None:
        await record.save(after, count)
    entry = await session.files.write(path, after, mode=mode)
    times = "once" if count == 1 else f"{count} times"
    return Answer(f"[replaced {times} in {entry.path}]", _entry_data(entry) | {"replaced": count})


@toolbox_operation
async def list_files(
    session: AsyncSession, path: str = ".", *, depth: int = 1, glob: str | None = None
) -> Answer:
    """List a folder. ``glob`` filters names; ``depth`` limits the levels; 0 means all."""
    walk = await session.files.walk(path, depth=max(0, depth), glob=glob, limit=MAX_ENTRIES)
    lines = [_listing_line(entry) for entry in walk.entries]
    if walk.truncated:
        lines.append(f"[only the first {len(lines)} entries are shown; list a subfolder, or use a glob]")
    data = {
        "path": path,
        "entries": [_entry_data(entry) for entry in walk.entries],
        "truncated": walk.truncated,
    }
    return Answer("\n".join(lines) or "(empty)", data)


@toolbox_operation
async def search(
    session: AsyncSession,
    pattern: str,
    path: str = ".",
    *,
    regex: bool = False,
    ignore_case: bool = False,
    glob: str | None = None,
) -> Answer:
    found = await session.files.search(
        path, pattern, regex=regex, ignore_case=ignore_case, glob=glob, limit=MAX_MATCHES
    )
    lines = [f"{match.path}:{match.line}: {match.text[:MAX_LINE_CHARACTERS]}" for match in found.matches]
    if found.truncated:
        lines.append(
            f"[only the first {len(lines)} matches are shown; use a more specific pattern, or search a "
            "subfolder]"
        )
    data = {
        "matches": [{"path": m.path, "line": m.line, "text": m.text} for m in found.matches],
        "truncated": found.truncated,
    }
    return Answer("\n".join(lines) or "(no matches)", data)


@toolbox_operation
async def upload_file(session: AsyncSession, path: str, content_base64: str) -> Answer:
    """Write a binary file from base64."""
    try:
        content = base64.b64decode(content_base64, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("content_base64 is not valid base64.") from None
    entry = await session.files.write(path, content)
    return Answer(f"[wrote {entry.size} bytes to {entry.path}]", _entry_data(entry))


@toolbox_operation
async def download_file(session: AsyncSession, path: str) -> Answer:
    """Return a file to the program: its base64 content is in the answer's data, not in its text."""
    try:
        content = await session.files.read(path, max_bytes=MAX_DOWNLOAD_BYTES)
    except FileProblem as problem:
        if problem.reason != "too_large":
            raise
        raise InvalidRequest(
            f"{path} exceeds the maximum of {MAX_DOWNLOAD_BYTES} bytes. Compress or split it."
        ) from None
    mime_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
    data = {
        "path": path,
        "name": path.rsplit("/", 1)[-1],
        "size": len(content),
        "mime_type": mime_type,
        "base64": base64.b64encode(content).decode("ascii"),
    }
    return Answer(f"[sent {path} to the user: {mime_type}, {len(content)} bytes]", data)


def _listing_line(entry: FileEntry) -> str:
    if entry.type is FileType.DIRECTORY:
        return f"{entry.path}/"
    if entry.type is FileType.SYMLINK:
        return f"{entry.path} -> {entry.target}"
    return f"{entry.path} ({entry.size} bytes)"


def _entry_data(entry: FileEntry) -> dict[str, str | int]:
    return {"path": entry.path, "type": entry.type.value, "size": entry.size}
