"""A tree of files with modes, links and times, and what a session shows of it."""

from __future__ import annotations

from typing import Final

from sandlot.client.async_session import AsyncSession
from sandlot.domain.files import FileEntry
from sandlot.testing.service_suite.harness import ok

Shown = dict[str, tuple[object, ...]]

# Paths of the tree, relative to the workspace.
PATHS: Final = ("folder", "folder/deep", "folder/deep/file", "folder/link", "program")


async def plant(session: AsyncSession) -> Shown:
    """Make the tree and return what the session shows of it."""
    await session.files.mkdir("folder", mode=0o750)
    await session.files.write("folder/deep/file", b"\0content\xff" * 1000, mode=0o600)
    await session.files.write("program", b"echo runs\n", mode=0o755)
    await ok(session, "ln -s deep/file folder/link; ln -s /nowhere dangling; mkdir empty; touch empty/none")
    return await shown(session)


async def shown(session: AsyncSession) -> Shown:
    """All entries of the workspace by their relative paths, with everything that must not change.

    Sandboxes have users of their own. What belongs to the one belongs to the next one's user.
    """
    own = await session.files.stat("/workspace")
    walk = await session.files.walk("/workspace", limit=100_000)
    entries = {entry.path.removeprefix("/workspace/"): _state(entry, own) for entry in walk.entries}
    files = [entry for entry in walk.entries if entry.type == "file"]
    for entry in files:
        path = entry.path.removeprefix("/workspace/")
        entries[path] += (await session.files.read(entry.path),)
    return entries


def _state(entry: FileEntry, own: FileEntry) -> tuple[object, ...]:
    owned = entry.uid == own.uid, entry.gid == own.gid
    return entry.type, entry.mode, *owned, entry.mtime_ms, entry.target
