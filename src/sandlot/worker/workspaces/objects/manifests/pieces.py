"""A piece: some bytes of a file, and the chunk that they are in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True, eq=False)
class Chunk:
    """``name``: empty until its last byte is known."""

    name: bytes = b""


class Piece(NamedTuple):
    """``chunk``: ``None`` is a hole."""

    chunk: Chunk | None
    offset: int
    length: int
