"""What is known of files in a sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FileType(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class FileEntry:
    path: str
    name: str
    type: FileType
    size: int
    mode: int
    mtime_ms: int
    uid: int
    gid: int
    target: str | None = None


@dataclass(frozen=True, slots=True)
class FilePage:
    """``next`` is what to give as ``after`` for the following page; None at the end."""

    entries: tuple[FileEntry, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Walk:
    entries: tuple[FileEntry, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class TextMatch:
    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Search:
    matches: tuple[TextMatch, ...]
    truncated: bool


class FileChangeType(StrEnum):
    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True)
class FileChange:
    """OVERFLOW (with an empty path) means that changes were lost: look again."""

    type: FileChangeType
    path: str


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    files: int
    bytes: int
