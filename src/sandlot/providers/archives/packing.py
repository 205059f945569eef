"""Packs a tree as a tar, piece by piece: modes, hard and symbolic links, times, holes, attributes, any name.

The tar is POSIX.1-2001 (pax), and sparse files are as GNU tar writes them (version 1.0). Sockets, named pipes
and devices are left out: they mean something to their processes alone.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandlot.domain.errors import TooLarge
from sandlot.domain.workspaces.objects.limits import MIB, MIN_HOLE_BYTES
from sandlot.providers.archives.limits import (
    MAX_FILE_DATA_BYTES,
    MAX_KEPT_BYTES,
    MAX_PARTS,
    MAX_PATH_BYTES,
    shown,
)
from sandlot.providers.archives.members import ATTRIBUTE
from sandlot.providers.trees.contents import attributes_of, data_of, read_exactly
from sandlot.providers.trees.walking import Found, Kind, open_file, walk

# What the files belong to in the archive. Not root: whoever unpacks it as root gets no setuid file of root's.
_OWNER: Final = 1000
_BLOCK: Final = tarfile.BLOCKSIZE
_PIECE_BYTES: Final = 1 * MIB


@dataclass(slots=True)
class _Linked:
    """A file that has other names, ``left`` of them not seen yet."""

    path: bytes
    left: int

    @property
    def kept(self) -> int:
        """What it takes in memory, about."""
        return len(self.path) + 300


def pack(folder: Path) -> Iterator[bytes]:
    """The tree must not change meanwhile."""
    linked: dict[int, _Linked] = {}
    kept = 0
    folders: list[bytes] = []
    for found in walk(folder):
        if found.kind is Kind.FOLDER_END:
            folders.pop()
            continue
        here = b"".join(folders)
        path = here + found.name
        if len(path) > MAX_PATH_BYTES:
            raise TooLarge(
                f"{shown(path)} has a path of more than {MAX_PATH_BYTES:,} bytes: no tar can have it."
            )
        if found.kind is Kind.FOLDER:
            folders.append(found.name + b"/" if found.name else b"")
            yield _header(_entry(path or b".", found, tarfile.DIRTYPE), attributes_of(found.folder))
        elif found.kind in (Kind.FILE, Kind.SYMLINK):
            if (first := linked.get(found.stat.st_ino)) is not None:
                first.left -= 1
                if not first.left:
                    del linked[found.stat.st_ino]
                    kept -= first.kept
                yield _header(_entry(path, found, tarfile.LNKTYPE, first.path))
                continue
            if found.stat.st_nlink > 1:
                linked[found.stat.st_ino] = _Linked(path, found.stat.st_nlink - 1)
                kept += linked[found.stat.st_ino].kept
                if kept > MAX_KEPT_BYTES:
                    raise TooLarge("The snapshot has too many hard links to be packed.")
            if found.kind is Kind.FILE:
                yield from _file(path, found)
            else:
                target = os.readlink(found.name, dir_fd=found.folder)
                yield _header(_entry(path, found, tarfile.SYMTYPE, target))
    yield bytes(2 * _BLOCK)


def _file(path: bytes, found: Found) -> Iterator[bytes]:
    opened = open_file(found)
    try:
        size = found.stat.st_size
        entry = _entry(path, found, tarfile.REGTYPE)
        # Holes that are longer than this are so few that the header has room for all of them.
        parts = list(data_of(opened, size, max(MIN_HOLE_BYTES, size // MAX_PARTS)))
        data = sum(end - start for start, end in parts)
        if data > MAX_FILE_DATA_BYTES:
            raise TooLarge(f"{shown(path)} has too many holes to be packed.")
        if data < size:
            lines = [
                len(parts) + 1,
                *(number for start, end in parts for number in (start, end - start)),
                size,
                0,
            ]
            where = "".join(f"{number}\n" for number in lines).encode()
            where += bytes(-len(where) % _BLOCK)
            entry.size = len(where) + data
            entry.pax_headers = {
                **entry.pax_headers,
                "GNU.sparse.major": "1",
                "GNU.sparse.minor": "0",
                "GNU.sparse.name": entry.name,
                "GNU.sparse.realsize": str(size),
            }
            entry.name = "GNUSparseFile.0/file"
            yield _header(entry, attributes_of(opened))
            yield where
        else:
            entry.size = size
            yield _header(entry, attributes_of(opened))
        for start, end in parts:
            for place in range(start, end, _PIECE_BYTES):
                yield read_exactly(opened, place, min(_PIECE_BYTES, end - place))
        yield bytes(-data % _BLOCK)
    finally:
        os.close(opened)


def _entry(path: bytes, found: Found, kind: bytes, link: bytes = b"") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(os.fsdecode(path))
    entry.type = kind
    entry.linkname = os.fsdecode(link)
    entry.mode = stat.S_IMODE(found.stat.st_mode)
    entry.uid = entry.gid = _OWNER
    changed = found.stat.st_mtime_ns
    entry.mtime = max(0, changed // 10**9)
    if changed % 10**9 or changed < 0:
        # Written out: the library's float has fewer digits than a time.
        sign, rest = ("-", -changed) if changed < 0 else ("", changed)
        entry.pax_headers = {"mtime": f"{sign}{rest // 10**9}.{rest % 10**9:09d}"}
    return entry


def _header(entry: tarfile.TarInfo, attributes: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    more = {}
    for name, value in attributes:
        escaped = os.fsdecode(name).replace("%", "%25").replace("=", "%3D")
        if escaped.isascii():  # a keyword is text
            more[ATTRIBUTE + escaped] = os.fsdecode(value)
    entry.pax_headers = {**entry.pax_headers, **more}
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
