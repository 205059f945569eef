"""File contents and program output in JSON, as the classic interface returns them, in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from starlette.responses import Response

from sandlot.api.classic.bodies import ApiArtifactBody, ApiFileBody, ApiResultBody
from sandlot.api.responses.json import JSON, encode_json, json_response
from sandlot.api.responses.large_results import base64_pieces, in_flight_bytes, is_text, text_pieces
from sandlot.api.responses.streams import StreamedResponse
from sandlot.domain.artifacts.artifact import Artifact
from sandlot.domain.capacity.budget import hold
from sandlot.domain.execution import ExecResult
from sandlot.wire.exec_bodies import ResultBody

# The JSON is at most six times as long. It stays in the connection's buffer after the request.
SMALL_BYTES: Final = 16 * 1024
SEND_TIMEOUT_S: Final = 60.0


def file_content_response(path: str, data: bytes) -> Response:
    if len(data) <= SMALL_BYTES:
        return json_response(ApiFileBody.of(path, data))
    hold(in_flight_bytes(len(data)))

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"path":%s,"content":"' % encode_json(path)
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

    return StreamedResponse(pieces(), replay=pieces, media_type=JSON, timeout_s=SEND_TIMEOUT_S)


def code_result_response(result: ExecResult, artifacts: Sequence[Artifact]) -> Response:
    listed = [ApiArtifactBody.of(artifact) for artifact in artifacts]
    if len(result.stdout) + len(result.stderr) <= SMALL_BYTES:
        body = ResultBody.of(result)
        return json_response(ApiResultBody(body.stdout, body.stderr, body.exit_code, [], listed))
    hold(in_flight_bytes(len(result.output)))

    async def pieces() -> AsyncIterator[bytes]:
        for name, data in ((b'{"stdout":"', result.stdout), (b'","stderr":"', result.stderr)):
            yield name
            for piece in text_pieces(data):
                yield piece
                await asyncio.sleep(0)
        rest = encode_json(ApiResultBody("", "", result.exit_code, [], listed))
        yield b'"' + rest.removeprefix(b'{"stdout":"","stderr":""')

    return StreamedResponse(pieces(), replay=pieces, media_type=JSON, timeout_s=SEND_TIMEOUT_S)
