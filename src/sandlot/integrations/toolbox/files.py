"""Files: read with line numbers, written, edited, listed, searched, and handed in and out."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from typing import Final

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import FileProblem, InvalidRequest
from sandlot.domain.files import FileEntry, FileType
from sandlot.integrations.model_text import DEFAULT_CHARACTERS
from sandlot.integrations.toolbox.answer import Answer, told, utf8
from sandlot.integrations.toolbox.edits import Edit

LINES: Final = 2000  # of one read
LINE_CHARACTERS: Final = 2000  # of one line; the rest of it is data rather than text
EDIT_BYTES: Final = 10 * 1024 * 1024
HANDED_BYTES: Final = 10 * 1024 * 1024
LISTED: Final = 1000
FOUND: Final = 200
LOOKED_AT: Final = 8 * 1024  # to tell text from other content


@told
async def read_file(
    session: AsyncSession,
    path: str,
    *,
    offset: int = 0,
    lines: int = LINES,
    limit: int = DEFAULT_CHARACTERS,
) -> Answer:
    """Lines from ``offset`` (0 is the first) on, numbered from 1 as editors do."""
    if offset < 0 or lines < 1:
        raise InvalidRequest("offset is 0 or more, and lines at least 1")
    page = _Page(offset, min(lines, LINES), limit)
    pending, first = b"", True
    async for piece in session.files.stream(path):
        if first and b"\0" in piece[:LOOKED_AT]:
            entry = await session.files.stat(path)
            text = f"[{path} is not text ({entry.size} bytes); look at it with a program, or download it]"
            return Answer(text, {"path": path, "binary": True, "size": entry.size}, failed=True)
        first = False
        *whole, pending = (pending + piece).split(b"\n")
        if not all(page.take(line) for line in whole):
            break
        if len(pending) > 4 * LINE_CHARACTERS:
            # Enough to show of it; a line without end must not be collected.
            pending = pending[: 4 * LINE_CHARACTERS]
    else:
        if pending:
            page.take(pending)
    return page.answer(path)


class _Page:
    """The lines that were asked for, as far as they fit."""

    def __init__(self, offset: int, lines: int, limit: int) -> None:
        self._offset = offset
        self._end = offset + lines
        self._room = limit
        self._seen = 0
        self._shown: list[str] = []
        self._more = False

    def take(self, line: bytes) -> bool:
        """False once there is no need of further lines."""
        number = self._seen
        self._seen += 1
        if number < self._offset:
            return True
        text = line.decode("utf-8", "replace").removesuffix("\r")
        if len(text) > LINE_CHARACTERS:
            text = text[:LINE_CHARACTERS] + " [… line cut …]"
        shown = f"{number + 1:6}\t{text}"
        if number >= self._end or (self._shown and len(shown) > self._room):
            self._more = True
            return False
        self._shown.append(shown)
        self._room -= len(shown) + 1
        return True

    def answer(self, path: str) -> Answer:
        next_offset = self._offset + len(self._shown)
        data = {"path": path, "lines": len(self._shown), "next_offset": next_offset if self._more else None}
        if not self._shown:
            if self._seen == 0:
                return Answer("(empty file)", data)
            return Answer(f"[{path} has only {self._seen} lines]", data, failed=True)
        text = "\n".join(self._shown)
        return Answer(f"{text}\n[more follows: offset={next_offset}]" if self._more else text, data)


@told
async def write_file(session: AsyncSession, path: str, content: str) -> Answer:
    entry = await session.files.write(path, utf8(content, "the content"))
    return Answer(f"[wrote {entry.size} bytes to {entry.path}]", _entry(entry))


@told
async def edit_file(
    session: AsyncSession,
    path: str,
    old: str,
    new: str,
    *,
    replace_all: bool = False,
    call_id: str | None = None,
) -> Answer:
    """``old`` must be there, and only once, unless all of them are to be replaced.

    ``call_id`` names the call: what it has done already is not done again.
    """
    if not old:
        raise InvalidRequest("old is empty: give the text to be replaced; write_file makes a new file")
    if old == new:
        raise InvalidRequest("old and new are the same: there is nothing to change")
    # Bytes throughout, so that what is not UTF-8 elsewhere in the file stays as it is.
    wanted, instead = utf8(old, "old"), utf8(new, "new")
    before = await session.files.read(path, max_bytes=EDIT_BYTES)
    edit = Edit(session, call_id, path, old, new) if call_id else None
    if edit is not None and await edit.replaced(before) is not None:
        return Answer(f"[replaced in {path}]", {"path": path, "size": len(before)})
    count = before.count(wanted)
    if count == 0:
        raise InvalidRequest(f"the text to be replaced is not in {path}; read the file and copy it exactly")
    if count > 1 and not replace_all:
        raise InvalidRequest(
            f"the text to be replaced is {count} times in {path}; give more of it, or set replace_all"
        )
    mode = (await session.files.stat(path)).mode & 0o777
    after = before.replace(wanted, instead)
    if edit is not None:
        await edit.note(after, count)
    entry = await session.files.write(path, after, mode=mode)
    times = "once" if count == 1 else f"{count} times"
    return Answer(f"[replaced {times} in {entry.path}]", _entry(entry) | {"replaced": count})


@told
async def list_files(
    session: AsyncSession, path: str = ".", *, depth: int = 1, glob: str | None = None
) -> Answer:
    """What is in a folder; ``glob`` and a greater ``depth`` (0: to the bottom) look further down."""
    walk = await session.files.walk(path, depth=max(0, depth), glob=glob, limit=LISTED)
    lines = [_line(entry) for entry in walk.entries]
    if walk.truncated:
        lines.append(f"[there is more than these {len(lines)}; look into a folder below, or give a glob]")
    data = {"path": path, "entries": [_entry(entry) for entry in walk.entries], "truncated": walk.truncated}
    return Answer("\n".join(lines) or "(nothing there)", data)


@told
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
        path, pattern, regex=regex, ignore_case=ignore_case, glob=glob, limit=FOUND
    )
    lines = [f"{match.path}:{match.line}: {match.text[:LINE_CHARACTERS]}" for match in found.matches]
    if found.truncated:
        lines.append(
            f"[more than these {len(lines)} lines; search for something rarer, or in a folder below]"
        )
    data = {
        "matches": [{"path": m.path, "line": m.line, "text": m.text} for m in found.matches],
        "truncated": found.truncated,
    }
    return Answer("\n".join(lines) or "(nothing found)", data)


@told
async def upload_file(session: AsyncSession, path: str, content_base64: str) -> Answer:
    """For content that is not text."""
    try:
        content = base64.b64decode(content_base64, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("content_base64 is not base64") from None
    entry = await session.files.write(path, content)
    return Answer(f"[wrote {entry.size} bytes to {entry.path}]", _entry(entry))


@told
async def download_file(session: AsyncSession, path: str) -> Answer:
    """Hands a file out: its content is in the answer's data, as base64, and not in the model's text."""
    try:
        content = await session.files.read(path, max_bytes=HANDED_BYTES)
    except FileProblem as problem:
        if problem.reason != "too_large":
            raise
        raise InvalidRequest(
            f"{path} is larger than the {HANDED_BYTES} bytes that can be handed out; compress or split it"
        ) from None
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    data = {
        "path": path,
        "name": path.rsplit("/", 1)[-1],
        "size": len(content),
        "mime_type": kind,
        "base64": base64.b64encode(content).decode("ascii"),
    }
    return Answer(f"[handed {path} to the user: {kind}, {len(content)} bytes]", data)


def _line(entry: FileEntry) -> str:
    if entry.type is FileType.DIRECTORY:
        return f"{entry.path}/"
    if entry.type is FileType.SYMLINK:
        return f"{entry.path} -> {entry.target}"
    return f"{entry.path} ({entry.size} bytes)"


def _entry(entry: FileEntry) -> dict[str, str | int]:
    return {"path": entry.path, "type": entry.type.value, "size": entry.size}
