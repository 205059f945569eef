"""A local folder as a tar, piece by piece: memory does not grow with the folder."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PIECE_BYTES: Final = 256 * 1024
_BLOCK: Final = tarfile.BLOCKSIZE


def pack(folder: Path) -> Iterator[bytes]:
    """Files, folders and links, relative to the folder; links as links. Sockets and devices are left out."""
    piece = bytearray()
    for part in _parts(folder):
        piece += part
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece) + bytes(2 * _BLOCK)


def _parts(folder: Path) -> Iterator[bytes]:
    for parent, folders, files in os.walk(folder, onerror=_raise):
        folders.sort()
        for name in sorted(folders + files):
            path = os.path.join(parent, name)
            info = os.lstat(path)
            entry = tarfile.TarInfo(os.path.relpath(path, folder))
            entry.mode = stat.S_IMODE(info.st_mode) & 0o777
            entry.mtime = int(info.st_mtime)
            if stat.S_ISDIR(info.st_mode):
                entry.type = tarfile.DIRTYPE
                yield _header(entry)
            elif stat.S_ISLNK(info.st_mode):
                entry.type = tarfile.SYMTYPE
                entry.linkname = os.readlink(path)
                yield _header(entry)
            elif stat.S_ISREG(info.st_mode):
                yield from _file(path, entry)


def _file(path: str, entry: tarfile.TarInfo) -> Iterator[bytes]:
    """With the size it has when it is opened: what it loses meanwhile is zeros, what it gains is left out."""
    with open(path, "rb") as file:
        entry.size = os.fstat(file.fileno()).st_size
        yield _header(entry)
        left = entry.size
        while left > 0:
            data = file.read(min(left, PIECE_BYTES)) or bytes(min(left, PIECE_BYTES))
            left -= len(data)
            yield data
    yield bytes(-entry.size % _BLOCK)


def _header(entry: tarfile.TarInfo) -> bytes:
    return entry.tobuf(tarfile.PAX_FORMAT)


def _raise(error: OSError) -> None:
    raise error
