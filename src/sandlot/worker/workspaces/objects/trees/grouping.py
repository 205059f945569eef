"""Puts small pieces together, so that many small files are few objects."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from sandlot.domain.workspaces.objects.limits import GROUP_BYTES, MAX_GROUP_BYTES, MIN_GROUP_BYTES
from sandlot.worker.workspaces.objects.manifests.pieces import Chunk, Piece

_HASHES: Final = 2**32


class Grouping:
    """``send``: takes the content of a chunk and returns its name.

    A group ends after a piece that says so: the chance for it is as high as the piece is large. So equal
    folders of two workspaces make equal groups, even if what is before them differs.
    """

    def __init__(self, send: Callable[[bytes], bytes]) -> None:
        self._send = send
        self._chunk = Chunk()
        self._content = bytearray()

    def add(self, data: bytes) -> Piece:
        if len(self._content) + len(data) > MAX_GROUP_BYTES:
            self.complete()
        piece = Piece(self._chunk, len(self._content), len(data))
        self._content += data
        ends = zlib.crc32(data) * GROUP_BYTES < len(data) * _HASHES
        if ends and len(self._content) >= MIN_GROUP_BYTES:
            self.complete()
        return piece

    def complete(self) -> None:
        """End the chunk that is open."""
        if self._content:
            self._chunk.name = self._send(bytes(self._content))
            self._chunk, self._content = Chunk(), bytearray()
