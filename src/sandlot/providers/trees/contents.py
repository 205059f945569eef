"""What a file has beside its data: its holes, and its extended attributes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from sandlot.domain.errors import StorageProblem
from sandlot.domain.workspaces.objects.limits import MAX_ATTRIBUTES_BYTES, MIN_HOLE_BYTES


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


def data_of(opened: int, size: int, min_hole_bytes: int = MIN_HOLE_BYTES) -> Iterator[tuple[int, int]]:
    """Where there is data: start and end. Shorter holes are taken as data."""
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
        if data - end >= min_hole_bytes:
            if end > start:
                yield start, end
            start = data
        end = place
    if size - end < min_hole_bytes:
        end = size
    if end > start:
        yield start, end


def read_exactly(opened: int, start: int, length: int) -> bytes:
    found = []
    while length:
        piece = os.pread(opened, length, start)
        if not piece:
            raise StorageProblem("A file became shorter while its workspace was saved.")
        found.append(piece)
        start += len(piece)
        length -= len(piece)
    return found[0] if len(found) == 1 else b"".join(found)
