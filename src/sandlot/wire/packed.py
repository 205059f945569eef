"""Results as MessagePack, for who asks for it: the members of their JSON, with bytes as they are.

JSON writes a zero byte in six characters, and twice, since output stands in a result by its channel and in
the order of its arrival: 16 MiB that a sandbox printed become 200 MiB to read, check and write again for each
server on the way.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from sandlot.domain.execution import ExecResult
from sandlot.domain.service import Access, ExecStatus, Opened, ThreadRun
from sandlot.wire.exec_bodies import ExecStatusBody, ResultBody, ResultFacts, ThreadRunBody
from sandlot.wire.http_bodies import SessionBody

PACKED: Final = "application/vnd.msgpack"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedResult(ResultFacts):
    stdout: bytes
    stderr: bytes
    output: bytes

    @classmethod
    def of(cls, result: ExecResult) -> PackedResult:
        return cls(**cls.members(result), stdout=result.stdout, stderr=result.stderr, output=result.output)

    def to_domain(self) -> ExecResult:
        return self.with_output(self.stdout, self.stderr, self.output)


@dataclass(frozen=True, slots=True)
class PackedStatus:
    exec_id: str
    running: bool
    result: PackedResult | None = None

    @classmethod
    def of(cls, status: ExecStatus) -> PackedStatus:
        result = None if status.result is None else PackedResult.of(status.result)
        return cls(status.exec_id, status.running, result)


@dataclass(frozen=True, slots=True)
class PackedThreadRun:
    session: SessionBody
    created: bool
    result: PackedResult

    @classmethod
    def of(cls, run: ThreadRun, access: Access | None = None) -> PackedThreadRun:
        session = SessionBody.of(run.opened.session, access)
        return cls(session, run.opened.created, PackedResult.of(run.result))


@dataclass(frozen=True, slots=True)
class ToldRun:
    """What a server said of a thread's command, in either form."""

    session: SessionBody
    run: ThreadRun

    @classmethod
    def of(cls, body: PackedThreadRun | ThreadRunBody) -> ToldRun:
        opened = Opened(body.session.to_domain(), body.created)
        return cls(body.session, ThreadRun(opened, body.result.to_domain()))


def _status(body: PackedStatus | ExecStatusBody) -> ExecStatus:
    return ExecStatus(body.exec_id, body.running, None if body.result is None else body.result.to_domain())


class ResultDecoder(Generic[T]):
    """Reads both forms: a server of another version may know JSON alone."""

    def __init__(self, packed: type[Any], body: type[Any], translate: Callable[[Any], T]) -> None:
        self._packed = msgspec.msgpack.Decoder(packed)
        self._json = msgspec.json.Decoder(body)
        self._translate = translate

    def decode(self, answer: bytes) -> T:
        # No map of MessagePack begins with this.
        decoder = self._json if answer.startswith(b"{") else self._packed
        return self._translate(decoder.decode(answer))


RESULT: Final = ResultDecoder[ExecResult](PackedResult, ResultBody, lambda body: body.to_domain())
STATUS: Final = ResultDecoder[ExecStatus](PackedStatus, ExecStatusBody, _status)
THREAD_RUN: Final = ResultDecoder[ToldRun](PackedThreadRun, ThreadRunBody, ToldRun.of)


# Output is what a packed body ends with, whichever it is: so it is written behind the rest as it is held.
_OUTPUTS: Final = ("stdout", "stderr", "output")
_NO_OUTPUT: Final = b"".join(msgspec.msgpack.encode(name) + msgspec.msgpack.encode(b"") for name in _OUTPUTS)


def packed_pieces(body: PackedResult | PackedStatus | PackedThreadRun, result: ExecResult) -> list[bytes]:
    """``msgpack.encode`` of a body with this result, without a second copy of the output."""
    empty = dataclasses.replace(PackedResult.of(result), stdout=b"", stderr=b"", output=b"")
    bare = empty if isinstance(body, PackedResult) else dataclasses.replace(body, result=empty)
    encoded = msgspec.msgpack.encode(bare)
    assert encoded.endswith(_NO_OUTPUT)
    pieces = [encoded.removesuffix(_NO_OUTPUT)]
    for name in _OUTPUTS:
        data: bytes = getattr(result, name)
        pieces += [msgspec.msgpack.encode(name) + _head(len(data)), data]
    return pieces


def _head(size: int) -> bytes:
    """What MessagePack puts before so many bytes."""
    if size < 1 << 8:
        return struct.pack(">BB", 0xC4, size)
    if size < 1 << 16:
        return struct.pack(">BH", 0xC5, size)
    return struct.pack(">BI", 0xC6, size)
