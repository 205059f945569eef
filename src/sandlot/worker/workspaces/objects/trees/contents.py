"""Reads a file: its holes, and its data in pieces cut where the content says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from pyfastcdc import FastCDC

from sandlot.domain.workspaces.objects.limits import (
    AVERAGE_CHUNK_BYTES,
    MAX_CHUNK_BYTES,
    MIB,
    MIN_CHUNK_BYTES,
)
from sandlot.providers.trees.contents import data_of, read_exactly

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
        for start, end in data_of(opened, size):
            if start > done:
                yield Cut(None, start - done)
            yield from self._cut(opened, start, end)
            done = end
        if size > done:
            yield Cut(None, size - done)

    def _cut(self, opened: int, start: int, end: int) -> Iterator[Cut]:
        kept = b""
        while start < end or kept:
            window = kept + read_exactly(opened, start, min(end - start, _WINDOW_BYTES))
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
