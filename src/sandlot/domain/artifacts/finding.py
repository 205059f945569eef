"""Finds the files that a pattern means, with the calls that every sandbox has.

What a sandbox says of its files is not trusted. A path that it names is used inside that sandbox only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandlot.domain.artifacts.artifact import MAX_FILES
from sandlot.domain.artifacts.patterns import (
    EVERYTHING_BELOW,
    WORKSPACE,
    path_inside,
    split_pattern,
)
from sandlot.domain.computer import Files
from sandlot.domain.errors import FileProblem
from sandlot.domain.files import FileEntry, FileType

# Files and folders that a search for one pattern returns, at most. More folders than files may match.
MAX_FOUND: Final = 5 * MAX_FILES


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """``paths``: relative to ``/workspace``, sorted. ``more``: whether there are more."""

    paths: tuple[str, ...] = ()
    more: bool = False


async def find_files(files: Files, pattern: str) -> FoundFiles:
    """The regular files that match. Symbolic links are neither followed nor found."""
    folders, glob = split_pattern(pattern)
    at, entry = WORKSPACE, None
    for folder in folders:
        if entry is not None and entry.type is not FileType.DIRECTORY:
            return FoundFiles()
        at += "/" + folder
        try:
            entry = await files.stat(at, follow=False)
        except FileProblem:
            return FoundFiles()
    if entry is not None and entry.type is not FileType.DIRECTORY:
        return _found([entry], more=False) if glob is None else FoundFiles()
    try:
        walk = await files.walk(at, glob=glob or EVERYTHING_BELOW, limit=MAX_FOUND)
    except FileProblem:
        return FoundFiles()
    return _found(walk.entries, more=walk.truncated)


def _found(entries: list[FileEntry] | tuple[FileEntry, ...], *, more: bool) -> FoundFiles:
    paths = sorted(
        path
        for entry in entries
        if entry.type is FileType.FILE and (path := path_inside(entry.path)) is not None
    )
    return FoundFiles(tuple(paths[:MAX_FILES]), more or len(paths) > MAX_FILES)
