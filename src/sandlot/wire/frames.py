"""Frames: encodes and decodes the typed frames that a link carries.

``docs/reference/agent-protocol.md`` is the specification. ``agent/testdata/golden.json`` holds
frames that this module and the agent's own codec must read alike. All input counts as hostile.
Whatever is wrong with it, this module raises only ``ProtocolViolation``, as soon as the broken rule
is visible, and before it spends memory on what a header announces.

The decoder owns one fixed buffer that the transport reads into directly. Each payload is copied
once, out of that buffer.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, NoReturn

MAX_PAYLOAD_BYTES: Final = 65_536
MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024  # a request's PARTs and OPEN together
DATA_HEAD_BYTES: Final = 9  # channel and offset before the bytes of a DATA frame
MAX_DATA_BYTES: Final = MAX_PAYLOAD_BYTES - DATA_HEAD_BYTES

_HEADER: Final = struct.Struct(">IIB")
_DATA_FRAME_HEAD: Final = struct.Struct(">IIBBQ")
_DATA_HEAD: Final = struct.Struct(">BQ")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")

_MIN_LENGTH: Final = 5  # a frame's stream id and kind
_MAX_LENGTH: Final = _MIN_LENGTH + MAX_PAYLOAD_BYTES

# Two frames of the largest size, so that a read rarely has less free space than one frame.
_BUFFER_BYTES: Final = 2 * (4 + _MAX_LENGTH)


class ProtocolViolation(Exception):
    """The other side broke a protocol rule. Never leaves the link: callers see a domain error."""


class ProtocolAbuse(ProtocolViolation):
    """The other side did something permitted so often that it can only be an attack."""


class Kind(IntEnum):
    OPEN = 1
    PART = 2
    MESSAGE = 3
    DATA = 4
    CREDIT = 5
    END = 6
    RESET = 7
    PING = 8
    PONG = 9
    HELLO = 10
    WELCOME = 11
    READY = 12
    REFUSE = 13


class Frame(NamedTuple):
    """One frame. ``body`` is the payload, without the ``channel`` and ``offset`` of a DATA frame."""

    stream: int
    kind: Kind
    body: bytes
    channel: int = 0
    offset: int = 0


# Indexed by the byte on the wire. Enum's own lookup costs more than the rest of a small frame.
_KINDS: Final[tuple[Kind | None, ...]] = (None, *Kind)
_HAS_STREAM: Final = tuple(kind is not None and kind <= Kind.RESET for kind in _KINDS)
_SIZES: Final = {  # smallest and largest payload of the kinds that restrict it
    Kind.DATA: (DATA_HEAD_BYTES, MAX_PAYLOAD_BYTES),
    Kind.CREDIT: (4, 4),
    Kind.END: (0, 0),
    Kind.PING: (8, 8),
    Kind.PONG: (8, 8),
}
_MIN_PAYLOAD: Final = tuple(_SIZES.get(kind, (0, 0))[0] if kind is not None else 0 for kind in _KINDS)
_MAX_PAYLOAD: Final = tuple(
    _SIZES.get(kind, (0, MAX_PAYLOAD_BYTES))[1] if kind is not None else 0 for kind in _KINDS
)


def encode(kind: Kind, stream: int, payload: bytes = b"") -> bytes:
    """Encode any frame from its whole payload."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError("a frame's payload is too large")
    return _HEADER.pack(_MIN_LENGTH + len(payload), stream, kind) + payload


def encode_data(stream: int, channel: int, offset: int, data: bytes | memoryview) -> bytes:
    length = _MIN_LENGTH + DATA_HEAD_BYTES + len(data)
    if length > _MAX_LENGTH:
        raise ValueError("a frame's payload is too large")
    return b"".join((_DATA_FRAME_HEAD.pack(length, stream, Kind.DATA, channel, offset), data))


def encode_request(stream: int, payload: bytes) -> bytes:
    """Encode an OPEN, preceded by PARTs if the request does not fit into one frame."""
    if len(payload) <= MAX_PAYLOAD_BYTES:
        return encode(Kind.OPEN, stream, payload)
    if len(payload) > MAX_REQUEST_BYTES:
        raise ValueError("the request is too large")
    pieces = [payload[at : at + MAX_PAYLOAD_BYTES] for at in range(0, len(payload), MAX_PAYLOAD_BYTES)]
    frames = [encode(Kind.PART, stream, piece) for piece in pieces[:-1]]
    frames.append(encode(Kind.OPEN, stream, pieces[-1]))
    return b"".join(frames)


def encode_credit(stream: int, amount: int) -> bytes:
    return encode(Kind.CREDIT, stream, _U32.pack(amount))


def encode_end(stream: int) -> bytes:
    return _HEADER.pack(_MIN_LENGTH, stream, Kind.END)


def encode_u64(kind: Kind, number: int) -> bytes:
    """Encode a PING or PONG."""
    return encode(kind, 0, _U64.pack(number))


def read_u32(body: bytes) -> int:
    number: int = _U32.unpack(body)[0]
    return number


def read_u64(body: bytes) -> int:
    number: int = _U64.unpack(body)[0]
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_ASCII_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def encode_object(value: Mapping[str, Any], *, names: bool = False) -> bytes:
    """Encode JSON. Raises ValueError for what is not UTF-8 text.

    ``names``: the object may contain file names. They are bytes; those that are not UTF-8 are
    surrogates in Python (``surrogateescape``) and the escapes \\udc80 … \\udcff on the wire.
    """
    text = _ENCODER.encode(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        if not names:
            raise
        return _ASCII_ENCODER.encode(value).encode()


def parse_object(payload: bytes, limit: int = MAX_PAYLOAD_BYTES) -> dict[str, Any]:
    """Parse one UTF-8 JSON object of at most ``limit`` bytes."""
    if len(payload) > limit:
        raise ProtocolViolation("JSON is too large")
    try:
        value = _DECODER.decode(payload.decode())
    except (ValueError, RecursionError) as problem:  # deep nesting must not crash the reader
        raise ProtocolViolation(f"broken JSON ({type(problem).__name__})") from None
    if type(value) is not dict:
        raise ProtocolViolation("JSON is not an object")
    return value


class FrameDecoder:
    """Takes bytes split at any point and yields whole frames.

    A transport writes into ``free()`` and then calls ``received(n)``. ``feed(chunk)`` is for
    callers that already hold the bytes. Frames must be taken from the iterator before the next
    bytes are given.
    """

    __slots__ = ("_broken", "_buffer", "_end", "_start", "_view")

    def __init__(self) -> None:
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._broken = False

    def free(self) -> memoryview:
        """The buffer space for the next bytes; never empty."""
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = 0
        elif _BUFFER_BYTES - end < MAX_PAYLOAD_BYTES and start > 0:
            self._view[: end - start] = self._view[start:end]
            self._start, self._end = 0, end - start
        return self._view[self._end :]

    def received(self, count: int) -> Iterator[Frame]:
        """Decode after ``count`` bytes were written into the space that ``free`` returned."""
        self._end += count
        view, end = self._view, self._end
        while True:
            start = self._start
            available = end - start
            if self._broken:
                raise ProtocolViolation("the stream of frames is broken")
            if available < 9:
                if available >= 4:
                    self._check_length(_U32.unpack_from(view, start)[0])
                return
            length, stream, code = _HEADER.unpack_from(view, start)
            kind = self._check(length, stream, code)
            if available < 4 + length:
                return
            self._start = stop = start + 4 + length
            if kind is Kind.DATA:
                channel, offset = _DATA_HEAD.unpack_from(view, start + 9)
                yield Frame(stream, kind, view[start + 18 : stop].tobytes(), channel, offset)
            else:
                yield Frame(stream, kind, view[start + 9 : stop].tobytes())

    def feed(self, chunk: bytes | bytearray | memoryview) -> Iterator[Frame]:
        rest = memoryview(chunk)
        while rest:
            room = self.free()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            yield from self.received(count)

    def _check_length(self, length: int) -> None:
        if not _MIN_LENGTH <= length <= _MAX_LENGTH:
            self._broken = True
            raise ProtocolViolation(f"a frame's length is {length}")

    def _check(self, length: int, stream: int, code: int) -> Kind:
        """Check the header's rules before waiting for its payload."""
        self._check_length(length)
        kind = _KINDS[code] if code < len(_KINDS) else None
        if kind is None:
            self._broken = True
            raise ProtocolViolation(f"a frame's kind is {code}")
        if _HAS_STREAM[code] != (stream > 0):
            self._broken = True
            raise ProtocolViolation(f"{kind.name} on stream {stream}")
        if not _MIN_PAYLOAD[code] <= length - _MIN_LENGTH <= _MAX_PAYLOAD[code]:
            self._broken = True
            raise ProtocolViolation(f"{kind.name} has a payload of {length - _MIN_LENGTH} bytes")
        return kind
