"""The Connect protocol with JSON, as E2B's SDKs speak it: unary calls, and streams of envelopes.

This is our own code and not the ``connectrpc`` package: that one serves classes which protobuf's compiler has
generated from E2B's schema, and brings protobuf's runtime and a second HTTP stack. What the SDKs use of the
protocol is JSON without compression: a body per call, and in streams five bytes before each message.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import ClientDisconnect

from sandlot.api.responses.json import encode_json
from sandlot.domain.errors import InvalidRequest, TooLarge, Unsupported

STREAM: Final = "application/connect+json"
UNARY: Final = "application/json"
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
_HEAD: Final = struct.Struct(">BI")
_COMPRESSED: Final = 1
_END: Final = 2
# A week: longer than any command may take.
_MAX_TIMEOUT_MS: Final = 7 * 24 * 3600 * 1000


def message(body: object) -> bytes:
    data = encode_json(body)
    return _HEAD.pack(0, len(data)) + data


def end_of_stream(error: dict[str, str] | None = None) -> bytes:
    data = encode_json({} if error is None else {"error": error})
    return _HEAD.pack(_END, len(data)) + data


def only_message(body: bytes) -> bytes:
    """The JSON of a request that consists of exactly one envelope."""
    if len(body) < _HEAD.size:
        raise InvalidRequest("The request has no complete Connect envelope.")
    data = body[_HEAD.size :]
    if _length(*_HEAD.unpack_from(body)) != len(data):
        raise InvalidRequest("The request is not exactly one Connect envelope.")
    return data


async def messages(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The JSON of each envelope of a client's stream, as it arrives. Holds one envelope at most."""
    pending = bytearray()
    try:
        async for chunk in chunks:
            pending += chunk
            while len(pending) >= _HEAD.size:
                flags, length = _HEAD.unpack_from(pending)
                if flags == _END:
                    return
                end = _HEAD.size + _length(flags, length)
                if len(pending) < end:
                    break
                yield bytes(pending[_HEAD.size : end])
                del pending[:end]
    except ClientDisconnect:
        return
    if pending:
        raise InvalidRequest("The stream ended within a Connect envelope.")


def _length(flags: int, length: int) -> int:
    if flags == _COMPRESSED:
        raise Unsupported("Compressed Connect messages are not supported. Send them as they are.")
    if flags != 0:
        raise InvalidRequest(f"A Connect envelope must not have the flags {flags}.")
    if length > MAX_MESSAGE_BYTES:
        raise TooLarge(f"A Connect message must not exceed {MAX_MESSAGE_BYTES} bytes.")
    return length


def timeout_of(header: str | None) -> float | None:
    """The seconds of Connect-Timeout-Ms; None for no timeout."""
    if header is None:
        return None
    if not (header.isascii() and header.isdigit() and len(header) <= 10 and int(header) > 0):
        raise InvalidRequest("Connect-Timeout-Ms must be a number of milliseconds.")
    return min(int(header), _MAX_TIMEOUT_MS) / 1000


Json = dict[str, Any]
