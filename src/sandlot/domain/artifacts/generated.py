"""What a program generated: the files that it left in ``/workspace/artifacts``, for the classic interface."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from sandlot.domain.artifacts.patterns import MAX_PATTERNS, path_inside
from sandlot.domain.files import FileEntry, FileType

FOLDER: Final = "artifacts"
_SPECIAL: Final = re.compile(r"([*?\[\\])")


def generated(before: Iterable[FileEntry], after: Iterable[FileEntry]) -> tuple[str, ...]:
    """The files that are new or have changed, as patterns to keep; as many as one call takes."""
    known = {entry.path: _version(entry) for entry in before}
    changed = sorted(
        path
        for entry in after
        if entry.type is FileType.FILE
        and known.get(entry.path) != _version(entry)
        and (path := path_inside(entry.path)) is not None
    )
    return tuple(_SPECIAL.sub(r"\\\1", path) for path in changed[:MAX_PATTERNS])


def _version(entry: FileEntry) -> tuple[int, int]:
    return entry.mtime_ms, entry.size
