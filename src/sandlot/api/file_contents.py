"""A file's content within JSON, as the older interface has it, piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import Response

from sandlot.api.answers import answer, encoded
from sandlot.api.result_pieces import base64_pieces, is_text, text_pieces
from sandlot.api.seed_bodies import ApiFileBody
from sandlot.api.streams import Flow

SMALL_BYTES: Final = 64 * 1024
SEND_S: Final = 60.0


def file_answer(path: str, data: bytes) -> Response:
    if len(data) <= SMALL_BYTES:
        return answer(ApiFileBody.of(path, data))

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

    return Flow(pieces(), media_type="application/json", within_s=SEND_S)
