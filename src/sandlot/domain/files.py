"""Values that describe files in a sandbox: entries, matches, changes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FileType(StrEnum):
    """What a directory entry is.

    file: a regular file.
    directory: a folder.
    symlink: a symbolic link.
    fifo: a named pipe.
    socket: a Unix socket.
    device: a device.
    """

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file or folder in the sandbox.

    path: its absolute path.
    name: the last part of the path.
    type: what it is.
    size: its size in bytes.
    mode: its permissions, as a number.
    mtime_ms: when it was last changed, in milliseconds since the epoch.
    uid: its owner's id.
    gid: its group's id.
    target: where a symbolic link points.
    """

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
    """One page of a folder's entries.

    entries: the entries, sorted by name.
    next: what to pass as ``after`` for the next page; empty at the end.
    """

    entries: tuple[FileEntry, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Walk:
    """Everything under a folder.

    entries: the files and folders.
    truncated: whether there are more than ``limit``.
    """

    entries: tuple[FileEntry, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class TextMatch:
    """A line that matches a search.

    path: the file.
    line: the line's number, from 1.
    text: the line, cut if it is long.
    """

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Search:
    """What a search found.

    matches: the lines.
    truncated: whether there are more than ``limit``.
    """

    matches: tuple[TextMatch, ...]
    truncated: bool


class FileChangeType(StrEnum):
    """What happened to a file.

    create: it was created, or moved here.
    write: its content was changed.
    remove: it was removed.
    rename: it was moved away.
    chmod: its permissions or owner were changed.
    overflow: changes came faster than they could be reported, and some are lost: look again.
    """

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change of a watched folder.

    type: what happened.
    path: which file or folder; empty for ``overflow``.
    """

    type: FileChangeType
    path: str


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """What an uploaded folder or archive contained.

    files: how many files.
    bytes: how many bytes.
    """

    files: int
    bytes: int
