"""Attaching to an exec over a WebSocket: output as it comes, stdin, a terminal's size, signals."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from contextlib import aclosing
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandlot.api.context import MAX_OFFSET, Service
from sandlot.api.responses.json import encode_json
from sandlot.api.responses.streams import CLIENT_READ_TIMEOUT_S, with_pings
from sandlot.domain.computer import Execution
from sandlot.domain.errors import Conflict, InvalidRequest, SandlotError, TooLarge
from sandlot.domain.execution import Channel, ExecEvent, Output
from sandlot.domain.service import SandboxService
from sandlot.wire.error_codes import problem_of
from sandlot.wire.event_bodies import event_body

MAX_MESSAGE_BYTES: Final = 1024 * 1024
HEADER: Final = struct.Struct(">BQ")
CHANNELS: Final = {Channel.STDOUT: 1, Channel.STDERR: 2}
CLOSE_BASE: Final = 4000
PING: Final = '{"type":"ping"}'

router = APIRouter()


class StdinEnd(msgspec.Struct, tag="stdin_end", forbid_unknown_fields=True):
    pass


class Resize(msgspec.Struct, tag="resize", forbid_unknown_fields=True):
    rows: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    cols: Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class Signal(msgspec.Struct, tag="signal", forbid_unknown_fields=True):
    signal: Annotated[int, msgspec.Meta(ge=1, le=64)]


_MESSAGES: Final = msgspec.json.Decoder(StdinEnd | Resize | Signal)


@router.websocket("/v1/sessions/{session_id}/execs/{exec_id}/attach")
async def attach(websocket: WebSocket, service: Service, session_id: str, exec_id: str) -> None:
    """Attach to an exec: read its output as it comes, write to its stdin, resize its terminal, send signals.

    The query parameter ``offset`` skips output before that byte.

        server → client   text    {"type": "started" | "exited" | "error" | "ping", …}
                          binary  1 byte channel (1 stdout, 2 stderr), 8 bytes big-endian offset, data
        client → server   binary  stdin
                          text    {"type": "stdin_end"}
                                  {"type": "resize", "rows": …, "cols": …}
                                  {"type": "signal", "signal": …}

    After ``exited`` the server closes with code 1000, after ``error`` with 4000 + the error's HTTP status.
    Disconnecting does not end the exec. The server sends ``ping`` if it has sent nothing else for a while.
    Each side waits for the other: a slow reader slows the command down. A message from the client has at most
    1 MiB.
    """
    await websocket.accept(headers=[(b"x-request-id", websocket.state.request_id.encode())])
    # TimeoutError: a client that reads nothing is disconnected.
    with contextlib.suppress(WebSocketDisconnect, TimeoutError):
        try:
            execution = await service.attach_exec(session_id, exec_id, offset=_offset(websocket))
            try:
                await _relay(websocket, service, session_id, execution)
            finally:
                await execution.detach()
        except SandlotError as error:
            problem = problem_of(error, websocket.state.request_id)
            await _send(websocket, "error", problem)
            await websocket.close(CLOSE_BASE + problem.status, problem.code)
        else:
            await websocket.close(1000)


def _offset(websocket: WebSocket) -> int:
    text = websocket.query_params.get("offset", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_OFFSET):
        raise InvalidRequest("offset must be a whole number of bytes.")
    return int(text)


async def _relay(
    websocket: WebSocket, service: SandboxService, session_id: str, execution: Execution
) -> None:
    """Relay until the exec exits, an error occurs, or ``WebSocketDisconnect`` is raised."""
    sending = asyncio.create_task(_send_events(websocket, execution))
    receiving = asyncio.create_task(_receive_messages(websocket, service, session_id, execution))
    try:
        await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sending.cancel()
        receiving.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)
    for task in (sending, receiving):
        if not task.cancelled():
            task.result()


async def _send_events(websocket: WebSocket, execution: Execution) -> None:
    async with aclosing(with_pings(execution.events(), None)) as events:
        async for event in events:
            async with asyncio.timeout(CLIENT_READ_TIMEOUT_S):
                await _send_event(websocket, execution.exec_id, event)


async def _send_event(websocket: WebSocket, exec_id: str, event: ExecEvent | None) -> None:
    if event is None:
        await websocket.send_text(PING)
    elif isinstance(event, Output):
        await websocket.send_bytes(HEADER.pack(CHANNELS[event.channel], event.offset) + event.data)
    else:
        name, body = event_body(exec_id, event)
        await _send(websocket, name, body)


async def _send(websocket: WebSocket, name: str, body: object) -> None:
    fields: dict[str, Any] = msgspec.to_builtins(body)
    await websocket.send_text(encode_json({**fields, "type": name}).decode())


async def _receive_messages(
    websocket: WebSocket, service: SandboxService, session_id: str, execution: Execution
) -> None:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        data, text = message.get("bytes"), message.get("text")
        if len(data or text or b"") > MAX_MESSAGE_BYTES:
            raise TooLarge(f"A message must not exceed {MAX_MESSAGE_BYTES} bytes.")
        # The exec may have ended or closed its stdin. As with any pipe, its events show that.
        with contextlib.suppress(Conflict):
            if data is not None:
                await execution.write_stdin(data)
            else:
                await _handle_control(service, session_id, execution, text or "")


async def _handle_control(service: SandboxService, session_id: str, execution: Execution, text: str) -> None:
    try:
        message = _MESSAGES.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"Unknown message: {error}") from None
    match message:
        case StdinEnd():
            await execution.close_stdin()
        case Resize(rows=rows, cols=cols):
            await service.resize_exec(session_id, execution.exec_id, rows=rows, cols=cols)
        case Signal(signal=signal):
            await service.signal_exec(session_id, execution.exec_id, signal)
