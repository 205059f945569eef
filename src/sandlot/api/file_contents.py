"""A file's content or a program's output within JSON, as the older interface has them, piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import Response

from sandlot.api.answers import JSON, answer, encoded
from sandlot.api.result_pieces import base64_pieces, in_flight, is_text, text_pieces
from sandlot.api.seed_bodies import ApiFileBody, ApiResultBody
from sandlot.api.streams import Flow
from sandlot.domain.budget import hold
from sandlot.domain.execution import ExecResult
from sandlot.wire.exec_bodies import ResultBody

# JSON of it is at most six times as long, and stays in the connection's buffer when the request is over.
SMALL_BYTES: Final = 16 * 1024
SEND_S: Final = 60.0


def file_answer(path: str, data: bytes) -> Response:
    if len(data) <= SMALL_BYTES:
        return answer(ApiFileBody.of(path, data))
    hold(in_flight(len(data)))

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"path":%s,"content":"' % encoded(path)
        for piece in text_pieces(data):
            yield piece
            await asyncio.sleep(0)
        if await is_text(data):
            yield b'","content_base64":null}'
            return
        yield b'","content_base64":"'
        for piece in base64_pieces(data):
            yield piece
            await asyncio.sleep(0)
        yield b'"}'

    return Flow(pieces(), again=pieces, media_type=JSON, within_s=SEND_S)


def program_answer(ran: ExecResult) -> Response:
    if len(ran.stdout) + len(ran.stderr) <= SMALL_BYTES:
        result = ResultBody.of(ran)
        return answer(ApiResultBody(result.stdout, result.stderr, result.exit_code))
    hold(in_flight(len(ran.output)))

    async def pieces() -> AsyncIterator[bytes]:
        for name, data in ((b'{"stdout":"', ran.stdout), (b'","stderr":"', ran.stderr)):
            yield name
            for piece in text_pieces(data):
                yield piece
                await asyncio.sleep(0)
        rest = encoded(ApiResultBody("", "", ran.exit_code))
        yield b'"' + rest.removeprefix(b'{"stdout":"","stderr":""')

    return Flow(pieces(), again=pieces, media_type=JSON, within_s=SEND_S)
