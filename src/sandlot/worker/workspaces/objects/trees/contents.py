"""Reads a file: its holes, its extended attributes, and its data in pieces cut where the content says."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from pyfastcdc import FastCDC

from sandlot.domain.errors import StorageProblem
from sandlot.domain.workspaces.objects.limits import (
    AVERAGE_CHUNK_BYTES,
    MAX_ATTRIBUTES_BYTES,
    MAX_CHUNK_BYTES,
    MIB,
    MIN_CHUNK_BYTES,
    MIN_HOLE_BYTES,
)

# How much of a large file is read at once.
_WINDOW_BYTES: Final = 8 * MIB


class Cut(NamedTuple):
    """``data``: ``None`` is a hole."""

    data: bytes | None
    length: int


class FileReader:
    """``seed``: of the places where files are cut."""

    def __init__(self, seed: int) -> None:
        self._cutter = FastCDC(
            AVERAGE_CHUNK_BYTES, min_size=MIN_CHUNK_BYTES, max_size=MAX_CHUNK_BYTES, seed=seed
        )

    def cuts(self, opened: int, size: int) -> Iterator[Cut]:
        """What the file holds, in order."""
        done = 0
        for start, end in _data_of(opened, size):
            if start > done:
                yield Cut(None, start - done)
            yield from self._cut(opened, start, end)
            done = end
        if size > done:
            yield Cut(None, size - done)

    def _cut(self, opened: int, start: int, end: int) -> Iterator[Cut]:
        kept = b""
        while start < end or kept:
            window = kept + _read(opened, start, min(end - start, _WINDOW_BYTES))
            start += len(window) - len(kept)
            kept = b""
            if len(window) <= MIN_CHUNK_BYTES:
                yield Cut(window, len(window))
                return
            for chunk in self._cutter.cut_buf(window):
                if start < end and chunk.offset + MAX_CHUNK_BYTES > len(window):
                    kept = window[chunk.offset :]
                    break
                yield Cut(bytes(chunk.data), chunk.length)


def attributes_of(opened: int) -> tuple[tuple[bytes, bytes], ...]:
    """Those of users. Others give rights, or are of this machine."""
    try:
        names = sorted(os.fsencode(name) for name in os.listxattr(opened) if name.startswith("user."))
        found = tuple((name, os.getxattr(opened, name)) for name in names)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM, errno.EACCES):
            return ()
        raise
    if sum(len(name) + len(value) for name, value in found) > MAX_ATTRIBUTES_BYTES:
        raise StorageProblem(
            f"A file has more than {MAX_ATTRIBUTES_BYTES:,} bytes of extended attributes, so its workspace "
            "cannot be saved."
        )
    return found


def _data_of(opened: int, size: int) -> Iterator[tuple[int, int]]:
    """Where there is data. Short holes are taken as data."""
    start = end = 0
    place = 0
    while place < size:
        try:
            data = os.lseek(opened, place, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                break
            raise
        place = min(os.lseek(opened, data, os.SEEK_HOLE), size)
        if data - end >= MIN_HOLE_BYTES:
            if end > start:
                yield start, end
            start = data
        end = place
    if size - end < MIN_HOLE_BYTES:
        end = size
    if end > start:
        yield start, end


def _read(opened: int, start: int, length: int) -> bytes:
    found = []
    while length:
        piece = os.pread(opened, length, start)
        if not piece:
            raise StorageProblem("A file became shorter while its workspace was saved.")
        found.append(piece)
        start += len(piece)
        length -= len(piece)
    return found[0] if len(found) == 1 else b"".join(found)
