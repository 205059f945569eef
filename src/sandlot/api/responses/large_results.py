"""A large result as JSON in pieces: the fields of ``ResultBody``, never all in memory at once.

A sandbox's output decides how long the JSON is, up to twelve times as long as the output. After
each piece the event loop serves other requests.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Final

import msgspec

from sandlot.domain.execution import ExecResult
from sandlot.wire.exec_bodies import ResultBody

# A multiple of three, so that the base64 of the pieces joins to the base64 of the whole.
PIECE_BYTES: Final = 3 * 8 * 1024
# JSON writes one byte as at most this many (\u0000).
MAX_JSON_PER_BYTE: Final = 6
# One piece is in the transport until the client takes it, and the next one is ready.
PIECES_IN_FLIGHT: Final = 2
_UTF8: Final = codecs.getincrementaldecoder("utf-8")


def in_flight_bytes(size: int) -> int:
    """Bytes held in addition to ``size`` bytes of output while they are written as JSON."""
    return PIECES_IN_FLIGHT * MAX_JSON_PER_BYTE * min(size, PIECE_BYTES)


async def result_pieces(result: ExecResult) -> AsyncIterator[bytes]:
    outputs = {"stdout": result.stdout, "stderr": result.stderr, "output": result.output}
    inexact = [name for name, data in outputs.items() if not await is_text(data)]
    rest = msgspec.to_builtins(ResultBody.of(replace(result, stdout=b"", stderr=b"", output=b"")))
    for name in (*outputs, *(f"{name}_base64" for name in inexact)):
        del rest[name]
    yield msgspec.json.encode(rest)[:-1]
    for name, pieces in (
        *((name, text_pieces(data)) for name, data in outputs.items()),
        *((f"{name}_base64", base64_pieces(outputs[name])) for name in inexact),
    ):
        yield f',"{name}":"'.encode()
        for piece in pieces:
            yield piece
            await asyncio.sleep(0)
        yield b'"'
    yield b"}"


async def is_text(data: bytes) -> bool:
    decoder = _UTF8()
    try:
        for piece in split_pieces(data):
            decoder.decode(piece)
            await asyncio.sleep(0)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def text_pieces(data: bytes) -> Iterator[bytes]:
    decoder = _UTF8("replace")
    for piece in split_pieces(data):
        yield msgspec.json.encode(decoder.decode(piece))[1:-1]
    yield msgspec.json.encode(decoder.decode(b"", final=True))[1:-1]


def base64_pieces(data: bytes) -> Iterator[bytes]:
    for piece in split_pieces(data):
        yield base64.b64encode(piece)


def split_pieces(data: bytes) -> Iterator[bytes]:
    for begin in range(0, len(data), PIECE_BYTES):
        yield data[begin : begin + PIECE_BYTES]
