"""Responses that hold a result: MessagePack for clients that accept it (``wire/packed.py``),
otherwise JSON.

A large result is sent in pieces. It counts against the budget, together with its encoded pieces,
until the client has read it, because the server cannot know how much sandboxes print or how slowly
clients read. A result with little output is encoded whole; if the encoding is long after all, it is
counted and sent the same way.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.responses.json import JSON, encode_json
from sandlot.api.responses.large_results import PIECES_IN_FLIGHT, in_flight_bytes, result_pieces
from sandlot.api.responses.streams import PIECE_BYTES, StreamedResponse, buffered_response, split_chunks
from sandlot.domain.capacity.budget import FREE_BYTES, hold, hold_at_least
from sandlot.domain.execution import ExecResult
from sandlot.domain.service import Access, ExecStatus, ThreadRun
from sandlot.wire.exec_bodies import ExecStatusBody, ResultBody, ThreadRunBody
from sandlot.wire.http_bodies import SessionBody
from sandlot.wire.packed import PACKED, PackedResult, PackedStatus, PackedThreadRun, packed_pieces

# Bytes of output, counted in both forms that a result holds. JSON may be twelve times as long, so
# what is encoded whole must be short: it stays in its connection's buffer after the request.
LARGE_BYTES: Final = FREE_BYTES
# A client that reads more slowly than this is disconnected, because others wait for the memory.
SEND_TIMEOUT_S: Final = 10.0
MIN_SEND_BYTES_PER_S: Final = 1024 * 1024

PACKED_CONTENT: Final[dict[str, Any]] = {PACKED: {"schema": {"type": "string", "format": "binary"}}}
PACKED_DESCRIPTION: Final = f"The result; with `Accept: {PACKED}` as MessagePack, with output as bytes"
_VARY_ACCEPT: Final = {"Vary": "Accept"}
_ZERO_QUALITY: Final = re.compile(r"q=0(\.0*)?")


def result_response(request: Request, result: ExecResult) -> Response:
    if accepts(request, PACKED):
        return _packed(PackedResult.of(result), result)
    return json_result_response(result)


def json_result_response(result: ExecResult) -> Response:
    if _is_large(result):
        return _json_stream(b"", result, b"")
    return _buffered(encode_json(ResultBody.of(result)), JSON)


def status_response(request: Request, status: ExecStatus, code: int = 200) -> Response:
    if accepts(request, PACKED):
        return _packed(PackedStatus.of(status), status.result, code)
    if status.result is not None and _is_large(status.result):
        prefix = _json_prefix({"exec_id": status.exec_id, "running": status.running})
        return _json_stream(prefix, status.result, b"}", code)
    return _buffered(encode_json(ExecStatusBody.of(status)), JSON, code)


def thread_run_response(request: Request, run: ThreadRun, access: Access | None) -> Response:
    if accepts(request, PACKED):
        return _packed(PackedThreadRun.of(run, access), run.result)
    if _is_large(run.result):
        session = SessionBody.of(run.opened.session, access)
        prefix = _json_prefix({"session": session, "created": run.opened.created})
        return _json_stream(prefix, run.result, b"}")
    return _buffered(encode_json(ThreadRunBody.of(run, access)), JSON)


def accepts(request: Request, media_type: str) -> bool:
    for header in request.headers.getlist("accept"):
        for part in header.lower().split(","):
            kind, *parameters = (word.strip() for word in part.split(";"))
            if kind == media_type and not any(_ZERO_QUALITY.fullmatch(word) for word in parameters):
                return True
    return False


def _held_size(result: ExecResult) -> int:
    """Bytes of output in memory. Output on one channel is the same object twice and counts once."""
    return sum(len(data) for data in {id(data): data for data in _outputs(result)}.values())


def _outputs(result: ExecResult) -> tuple[bytes, bytes, bytes]:
    return result.stdout, result.stderr, result.output


def _is_large(result: ExecResult) -> bool:
    return _held_size(result) > LARGE_BYTES


def _json_prefix(members: dict[str, object]) -> bytes:
    """The beginning of a JSON object, up to its last field, the result."""
    return encode_json(members)[:-1] + b',"result":'


def _buffered(body: bytes, media_type: str, code: int = 200) -> Response:
    return buffered_response(
        body, media_type, status=code, headers=_VARY_ACCEPT, timeout_s=_send_timeout_s(len(body))
    )


def _packed(
    body: PackedResult | PackedStatus | PackedThreadRun, result: ExecResult | None, code: int = 200
) -> Response:
    if result is None or not _is_large(result):
        return _buffered(msgspec.msgpack.encode(body), PACKED, code)
    hold_at_least(_held_size(result))
    hold(PIECES_IN_FLIGHT * PIECE_BYTES)
    pieces = packed_pieces(body, result)
    length = sum(map(len, pieces))
    headers = {"content-length": str(length), **_VARY_ACCEPT}
    return StreamedResponse(
        split_chunks(pieces),
        media_type=PACKED,
        status=code,
        headers=headers,
        timeout_s=_send_timeout_s(length),
    )


def _json_stream(prefix: bytes, result: ExecResult, suffix: bytes, code: int = 200) -> Response:
    hold_at_least(_held_size(result))
    hold(in_flight_bytes(_held_size(result)))

    async def pieces() -> AsyncIterator[bytes]:
        yield prefix
        async for piece in result_pieces(result):
            yield piece
        yield suffix

    # The bytes stay on the request's account until the client has read them all or is disconnected.
    timeout_s = _send_timeout_s(_held_size(result))
    return StreamedResponse(
        pieces(), replay=pieces, media_type=JSON, status=code, headers=_VARY_ACCEPT, timeout_s=timeout_s
    )


def _send_timeout_s(size: int) -> float:
    return SEND_TIMEOUT_S + size / MIN_SEND_BYTES_PER_S
