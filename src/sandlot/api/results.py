"""Answers that hold a result: packed for who takes that (``wire/packed.py``), otherwise as JSON.

A large one goes in pieces and counts against a budget, with the pieces that are encoded, until its client has
taken it: how much sandboxes print and how slowly clients read is not for this server to know. One with little
output is encoded as a whole, and where that is long after all, it is counted and sent in the same way.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.answers import JSON, encoded
from sandlot.api.result_pieces import PIECES_IN_FLIGHT, in_flight, result_pieces
from sandlot.api.streams import PIECE_BYTES, Flow, in_turn, whole_answer
from sandlot.domain.budget import FREE_BYTES, hold, hold_at_least
from sandlot.domain.execution import ExecResult
from sandlot.domain.service import Access, ExecStatus, ThreadRun
from sandlot.wire.exec_bodies import ExecStatusBody, ResultBody, ThreadRunBody
from sandlot.wire.http_bodies import SessionBody
from sandlot.wire.packed import PACKED, PackedResult, PackedStatus, PackedThreadRun, packed_pieces

# Of output, counted in both of the forms in which a result has it. JSON may be twelve times as long, so what
# is encoded as a whole must be short; an answer stays in its connection's buffer when the request is over.
LARGE_BYTES: Final = FREE_BYTES
# A client that takes its result more slowly than this is cut off: others wait for the room.
SEND_S: Final = 10.0
SLOWEST_BYTES_PER_S: Final = 1024 * 1024

PACKED_CONTENT: Final[dict[str, Any]] = {PACKED: {"schema": {"type": "string", "format": "binary"}}}
PACKED_TOLD: Final = f"The result; with Accept: {PACKED} the same members, output as bytes"
_VARIES: Final = {"Vary": "Accept"}
_REFUSED: Final = re.compile(r"q=0(\.0*)?")


def result_answer(request: Request, result: ExecResult) -> Response:
    if takes(request, PACKED):
        return _packed(PackedResult.of(result), result)
    return json_result_answer(result)


def json_result_answer(result: ExecResult) -> Response:
    if _is_large(result):
        return _as_json(b"", result, b"")
    return _whole(encoded(ResultBody.of(result)), JSON)


def status_answer(request: Request, status: ExecStatus, code: int = 200) -> Response:
    if takes(request, PACKED):
        return _packed(PackedStatus.of(status), status.result, code)
    if status.result is not None and _is_large(status.result):
        before = _before({"exec_id": status.exec_id, "running": status.running})
        return _as_json(before, status.result, b"}", code)
    return _whole(encoded(ExecStatusBody.of(status)), JSON, code)


def thread_run_answer(request: Request, run: ThreadRun, access: Access | None) -> Response:
    if takes(request, PACKED):
        return _packed(PackedThreadRun.of(run, access), run.result)
    if _is_large(run.result):
        session = SessionBody.of(run.opened.session, access)
        before = _before({"session": session, "created": run.opened.created})
        return _as_json(before, run.result, b"}")
    return _whole(encoded(ThreadRunBody.of(run, access)), JSON)


def takes(request: Request, media_type: str) -> bool:
    for line in request.headers.getlist("accept"):
        for part in line.lower().split(","):
            kind, *parameters = (word.strip() for word in part.split(";"))
            if kind == media_type and not any(_REFUSED.fullmatch(word) for word in parameters):
                return True
    return False


def _size(result: ExecResult) -> int:
    """Of what is held: output on one channel is the same bytes twice."""
    return sum(len(data) for data in {id(data): data for data in _outputs(result)}.values())


def _outputs(result: ExecResult) -> tuple[bytes, bytes, bytes]:
    return result.stdout, result.stderr, result.output


def _is_large(result: ExecResult) -> bool:
    return _size(result) > LARGE_BYTES


def _before(members: dict[str, object]) -> bytes:
    """The object's beginning, as far as its last member, the result."""
    return encoded(members)[:-1] + b',"result":'


def _whole(body: bytes, media_type: str, code: int = 200) -> Response:
    return whole_answer(body, media_type, status=code, headers=_VARIES, within_s=_send_s(len(body)))


def _packed(
    body: PackedResult | PackedStatus | PackedThreadRun, result: ExecResult | None, code: int = 200
) -> Response:
    if result is None or not _is_large(result):
        return _whole(msgspec.msgpack.encode(body), PACKED, code)
    hold_at_least(_size(result))
    hold(PIECES_IN_FLIGHT * PIECE_BYTES)
    pieces = packed_pieces(body, result)
    length = sum(map(len, pieces))
    headers = {"content-length": str(length), **_VARIES}
    return Flow(in_turn(pieces), media_type=PACKED, status=code, headers=headers, within_s=_send_s(length))


def _as_json(before: bytes, result: ExecResult, after: bytes, code: int = 200) -> Response:
    hold_at_least(_size(result))
    hold(in_flight(_size(result)))

    async def pieces() -> AsyncIterator[bytes]:
        yield before
        async for piece in result_pieces(result):
            yield piece
        yield after

    # The bytes stay on the request's account until the client has taken them all, or was cut off.
    within_s = _send_s(_size(result))
    return Flow(pieces(), again=pieces, media_type=JSON, status=code, headers=_VARIES, within_s=within_s)


def _send_s(size: int) -> float:
    return SEND_S + size / SLOWEST_BYTES_PER_S
