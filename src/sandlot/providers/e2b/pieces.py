"""What a relay writes and reads: one piece of one connection in each line, in base64. Pure."""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

PIECE_BYTES: Final = 48 * 1024
# A piece of this size, in base64. A relay that writes longer lines is broken, or is none.
MAX_LINE: Final = 128 * 1024
_HEAD: Final = struct.Struct(">IB")


class Kind(IntEnum):
    """OPENED and GONE come from the relay alone. ALIVE goes to it alone, and says that the worker is there.

    GONE: the agent has ended, and with it every exec.
    """

    OPENED = 1
    DATA = 2
    CLOSED = 3
    ALIVE = 4
    GONE = 5


@dataclass(frozen=True, slots=True)
class Piece:
    number: int  # of the connection
    kind: Kind
    data: bytes = b""

    def line(self) -> bytes:
        return base64.b64encode(_HEAD.pack(self.number, self.kind) + self.data) + b"\n"


class BrokenRelay(Exception):
    """What the relay wrote is no piece."""


class Lines:
    """Turns text as it arrives into pieces."""

    def __init__(self) -> None:
        self._rest = ""

    def receive(self, text: str) -> list[Piece]:
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > MAX_LINE:
            raise BrokenRelay("a line is too long")
        return [parse(line) for line in lines]


def parse(line: str) -> Piece:
    if len(line) > MAX_LINE:
        raise BrokenRelay("a line is too long")
    try:
        piece = base64.b64decode(line, validate=True)
        number, kind = _HEAD.unpack_from(piece)
        return Piece(number, Kind(kind), piece[_HEAD.size :])
    except (binascii.Error, struct.error, ValueError) as error:
        raise BrokenRelay(f"{line[:40]!r} is no piece") from error
