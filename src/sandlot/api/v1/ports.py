"""Ports of a sandbox: connections to them, and their previews."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Body, Path
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandlot.api.context import Service
from sandlot.api.edge.error_responses import PROBLEMS, problem_response
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.previews.options import PreviewOptions
from sandlot.api.responses.json import encode_json, json_response
from sandlot.api.responses.streams import CLIENT_READ_TIMEOUT_S
from sandlot.domain.background_tasks import side_by_side
from sandlot.domain.computer import ByteStream
from sandlot.domain.errors import InvalidRequest, LinkInterrupted, NotFound, SandlotError, TooLarge
from sandlot.domain.network.ports import MAX_PORT
from sandlot.domain.network.preview_links import preview_of
from sandlot.wire.error_codes import problem_of
from sandlot.wire.network.preview_bodies import (
    END_MESSAGE,
    ExposedPortBody,
    ExposedPortListBody,
    ExposePortBody,
    PreviewBody,
)

MAX_MESSAGE_BYTES: Final = 1024 * 1024
CLOSE_BASE: Final = 4000

Port = Annotated[int, Path(ge=1, le=MAX_PORT, description="The port inside the sandbox.")]

router = APIRouter(prefix="/v1/sessions", tags=["ports"], route_class=JsonRoute, responses=PROBLEMS)


@router.put("/{session_id}/ports/{port}", response_model=PreviewBody)
async def expose_port(
    service: Service,
    request: Request,
    session_id: str,
    port: Port,
    body: Annotated[ExposePortBody, Body(default_factory=ExposePortBody)],
) -> Response:
    """Expose a port, and return a link to its preview. Links that it already has stay valid."""
    asked, options = body.to_domain(port), _options(request)
    if asked.public and options is not None and not options.public:
        raise InvalidRequest(
            "This server shows no public previews. Its operator has set SANDLOT_PREVIEWS=private."
        )
    preview = await service.expose_port(session_id, asked)
    if options is not None:
        preview = preview_of(options.tokens, options.domain, session_id, preview.exposure, asked)
        if preview.prefix:
            preview = replace(preview, url=f"{request.url.scheme}://{request.headers['host']}{preview.url}")
    return json_response(PreviewBody.of(preview), headers={"Cache-Control": "no-store"})


def _options(request: Request) -> PreviewOptions | None:
    """None on a worker of a fleet, whose coordinators show the previews, and if they are switched off."""
    options: PreviewOptions | None = request.app.state.previews
    return options


@router.delete("/{session_id}/ports/{port}", status_code=204)
async def unexpose_port(service: Service, session_id: str, port: Port) -> Response:
    """End a port's preview: its links, and the connections of its visitors."""
    await service.unexpose_port(session_id, port)
    return Response(status_code=204)


@router.get("/{session_id}/ports", response_model=ExposedPortListBody)
async def list_exposed(service: Service, session_id: str) -> Response:
    """List the exposed ports, in their order."""
    exposures = await service.list_exposed(session_id)
    return json_response(ExposedPortListBody([ExposedPortBody.of(exposure) for exposure in exposures]))


class _End(msgspec.Struct, tag="end", forbid_unknown_fields=True):
    pass


_END: Final = msgspec.json.Decoder(_End)


@router.websocket("/{session_id}/ports/{port}/connect")
async def connect_port(websocket: WebSocket, service: Service, session_id: str, port: str) -> None:
    """Connect to a TCP port of the sandbox's loopback.

        both ways   binary  bytes
                    text    {"type": "end"}: the sender sends no more

    The server accepts once it has connected, and otherwise refuses with the error's HTTP status. It closes
    with code 1000 after both sides have ended. It sends an error as ``{"type": "error", …}`` and then closes
    with 4000 + the error's HTTP status. Each side waits for the other. A message has at most 1 MiB.
    """
    try:
        if not (port.isascii() and port.isdigit() and len(port) <= len(str(MAX_PORT))):
            raise NotFound("Nothing exists at this path.")
        through = websocket.query_params.get("through", "")
        stream = await service.connect(session_id, int(port), through=through)
    except SandlotError as error:
        await websocket.send_denial_response(problem_response(error, websocket.state.request_id))
        return
    with contextlib.suppress(WebSocketDisconnect, TimeoutError):
        try:
            await websocket.accept(headers=[(b"x-request-id", websocket.state.request_id.encode())])
            await _relay(websocket, stream)
        except (SandlotError, OSError) as error:
            known = error if isinstance(error, SandlotError) else LinkInterrupted("The connection broke.")
            problem = problem_of(known, websocket.state.request_id)
            await websocket.send_text(encode_json({**msgspec.to_builtins(problem), "type": "error"}).decode())
            await websocket.close(CLOSE_BASE + problem.status, problem.code)
        else:
            await websocket.close(1000)
        finally:
            stream.abort()


async def _relay(websocket: WebSocket, stream: ByteStream) -> None:
    """Copy both ways until both sides have ended, or either breaks off."""
    await side_by_side(_outward(websocket, stream), _inward(websocket, stream))


async def _outward(websocket: WebSocket, stream: ByteStream) -> None:
    while data := await stream.receive():
        async with asyncio.timeout(CLIENT_READ_TIMEOUT_S):
            await websocket.send_bytes(data)
    await websocket.send_text(END_MESSAGE)


async def _inward(websocket: WebSocket, stream: ByteStream) -> None:
    ended = False
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        data = message.get("bytes")
        if ended:
            raise InvalidRequest("A message follows the end.")
        if data is None:
            _check_end(message.get("text") or "")
            ended = True
            await stream.send_end()
            return
        if len(data) > MAX_MESSAGE_BYTES:
            raise TooLarge(f"A message must not exceed {MAX_MESSAGE_BYTES} bytes.")
        await stream.send(data)


def _check_end(text: str) -> None:
    try:
        _END.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"Unknown message: {error}") from None
