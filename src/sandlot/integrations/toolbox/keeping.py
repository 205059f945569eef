"""Small files of ours in the sandbox: the newest few of a folder in /tmp, which is small."""

from __future__ import annotations

import re
from typing import Final

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import FileProblem
from sandlot.domain.files import FileType

# What we have written ourselves; anything else in the folder is somebody's.
_OURS: Final = re.compile(r"(?:call|exec|job|edit)[-_][0-9a-f]{8,64}(?:\.txt)?")
REMOVED_AT_ONCE: Final = 8


async def keep_newest(session: AsyncSession, folder: str, name: str, content: bytes, count: int) -> None:
    """Writes it, and removes the oldest ones of ours beyond ``count``, but never what was just written."""
    path = f"{folder}/{name}"
    await session.files.write(path, content)
    if (await session.files.stat(folder, follow=False)).type is not FileType.DIRECTORY:
        raise FileProblem(f"{folder} is not a folder of ours", reason="not_a_directory", path=folder)
    ours = [
        entry
        for entry in await session.files.list(folder)
        if entry.name != name and _OURS.fullmatch(entry.name) is not None
    ]
    ours.sort(key=lambda entry: entry.mtime_ms)
    for entry in ours[: max(0, len(ours) + 1 - count)][:REMOVED_AT_ONCE]:
        await session.files.remove(f"{folder}/{entry.name}", missing_ok=True)
