"""Results as MessagePack, for clients that ask for it: the JSON's fields, with output as bytes.

JSON writes a zero byte as six characters. It also writes output twice, because a result holds it by
channel and in order of arrival. So 16 MiB of a sandbox's output become 200 MiB that each server on
the way must read, check and write again.
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
from sandlot.wire.exec_bodies import ExecStatusBody, ResultBody, ResultFacts, ThreadRunBody, verdict_for_sdk
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
        facts = {**cls.members(result), "verdict": verdict_for_sdk(result.verdict)}
        return cls(**facts, stdout=result.stdout, stderr=result.stderr, output=result.output)

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
class DecodedThreadRun:
    """A server's response about a thread's command, from either format."""

    session: SessionBody
    run: ThreadRun

    @classmethod
    def of(cls, body: PackedThreadRun | ThreadRunBody) -> DecodedThreadRun:
        opened = Opened(body.session.to_domain(), body.created)
        return cls(body.session, ThreadRun(opened, body.result.to_domain()))


def _status(body: PackedStatus | ExecStatusBody) -> ExecStatus:
    return ExecStatus(body.exec_id, body.running, None if body.result is None else body.result.to_domain())


class ResultDecoder(Generic[T]):
    """Decodes both formats: a server of another version may send only JSON."""

    def __init__(self, packed: type[Any], body: type[Any], translate: Callable[[Any], T]) -> None:
        self._packed = msgspec.msgpack.Decoder(packed)
        self._json = msgspec.json.Decoder(body)
        self._translate = translate

    def decode(self, content: bytes) -> T:
        # No MessagePack map begins with this byte.
        decoder = self._json if content.startswith(b"{") else self._packed
        return self._translate(decoder.decode(content))


RESULT: Final = ResultDecoder[ExecResult](PackedResult, ResultBody, lambda body: body.to_domain())
STATUS: Final = ResultDecoder[ExecStatus](PackedStatus, ExecStatusBody, _status)
THREAD_RUN: Final = ResultDecoder[DecodedThreadRun](PackedThreadRun, ThreadRunBody, DecodedThreadRun.of)


# Every packed body ends with the output, so the output is appended as it is, without a copy.
_OUTPUTS: Final = ("stdout", "stderr", "output")
_NO_OUTPUT: Final = b"".join(msgspec.msgpack.encode(name) + msgspec.msgpack.encode(b"") for name in _OUTPUTS)


def packed_pieces(body: PackedResult | PackedStatus | PackedThreadRun, result: ExecResult) -> list[bytes]:
    """The ``msgpack.encode`` of a body with this result, without a second copy of the output."""
    empty = dataclasses.replace(PackedResult.of(result), stdout=b"", stderr=b"", output=b"")
    without_output = empty if isinstance(body, PackedResult) else dataclasses.replace(body, result=empty)
    encoded = msgspec.msgpack.encode(without_output)
    assert encoded.endswith(_NO_OUTPUT)
    pieces = [encoded.removesuffix(_NO_OUTPUT)]
    for name in _OUTPUTS:
        data: bytes = getattr(result, name)
        pieces += [msgspec.msgpack.encode(name) + _bin_header(len(data)), data]
    return pieces


def _bin_header(size: int) -> bytes:
    """The MessagePack header of ``size`` bytes."""
    if size < 1 << 8:
        return struct.pack(">BB", 0xC4, size)
    if size < 1 << 16:
        return struct.pack(">BH", 0xC5, size)
    return struct.pack(">BI", 0xC6, size)
