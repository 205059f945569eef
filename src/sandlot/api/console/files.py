"""The console's files, read once. A request names one of them exactly, so no path leads anywhere else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

DIST: Final = Path(__file__).parent / "dist"
INDEX: Final = "index.html"
ASSETS: Final = "assets/"
# Every kind of file that the build makes. Another one would be sent as bytes to download.
MEDIA_TYPES: Final = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".svg": "image/svg+xml",
    }
)
GZIP: Final = ".gz"


@dataclass(frozen=True, slots=True)
class File:
    """``gzipped``: None if the build did not compress it. ``lasting``: its name changes with its content."""

    content: bytes
    gzipped: bytes | None
    media_type: str
    etag: str
    lasting: bool


def read_files(folder: Path = DIST) -> Mapping[str, File]:
    """The files by their path below ``folder``; empty if the console was not built."""
    if not (folder / INDEX).is_file():
        return {}
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: _file(name, path, paths) for name, path in paths.items() if not name.endswith(GZIP)}


def _file(name: str, path: Path, paths: Mapping[str, Path]) -> File:
    content = path.read_bytes()
    gzipped = paths.get(name + GZIP)
    return File(
        content,
        None if gzipped is None else gzipped.read_bytes(),
        MEDIA_TYPES.get(path.suffix, "application/octet-stream"),
        f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        name.startswith(ASSETS),
    )
