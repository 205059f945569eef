"""Packs a local folder as a tar, piece by piece, so that memory does not grow with the folder."""

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
    """Yield a tar of the folder's files, folders and links, with names relative to the folder.

    Links stay links. Sockets and devices are left out.
    """
    piece = bytearray()
    for block in _tar_blocks(folder):
        piece += block
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece) + bytes(2 * _BLOCK)


def _tar_blocks(folder: Path) -> Iterator[bytes]:
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
                yield from _file_blocks(path, entry)


def _file_blocks(path: str, entry: tarfile.TarInfo) -> Iterator[bytes]:
    """Yield a file with the size that it has when it is opened.

    If the file shrinks meanwhile, zeros fill the rest. If it grows, the new bytes are left out.
    """
    with open(path, "rb") as file:
        entry.size = os.fstat(file.fileno()).st_size
        yield _header(entry)
        remaining = entry.size
        while remaining > 0:
            data = file.read(min(remaining, PIECE_BYTES)) or bytes(min(remaining, PIECE_BYTES))
            remaining -= len(data)
            yield data
    yield bytes(-entry.size % _BLOCK)


def _header(entry: tarfile.TarInfo) -> bytes:
    return entry.tobuf(tarfile.PAX_FORMAT)


def _raise(error: OSError) -> None:
    raise error
