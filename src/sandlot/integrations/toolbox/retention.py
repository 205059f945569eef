"""Keeps the newest few of our own files in a folder below the sandbox's /tmp, which is small."""

from __future__ import annotations

import re
from typing import Final

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import FileProblem
from sandlot.domain.files import FileType

# The names of files that this package writes. It never removes other files from the folder.
_OWN_NAMES: Final = re.compile(r"(?:call|exec|job|edit)[-_][0-9a-f]{8,64}(?:\.txt)?")
MAX_REMOVED: Final = 8


async def write_and_prune(
    session: AsyncSession, folder: str, name: str, content: bytes, max_files: int
) -> None:
    """Write a file, and remove our oldest files beyond ``max_files``, but never the new one."""
    path = f"{folder}/{name}"
    await session.files.write(path, content)
    if (await session.files.stat(folder, follow=False)).type is not FileType.DIRECTORY:
        raise FileProblem(f"{folder} is not a folder.", reason="not_a_directory", path=folder)
    own = [
        entry
        for entry in await session.files.list(folder)
        if entry.name != name and _OWN_NAMES.fullmatch(entry.name) is not None
    ]
    own.sort(key=lambda entry: entry.mtime_ms)
    for entry in own[: max(0, len(own) + 1 - max_files)][:MAX_REMOVED]:
        await session.files.remove(f"{folder}/{entry.name}", missing_ok=True)
