"""Attaching to an exec over a WebSocket: output as it comes, stdin, a terminal's size, signals.

    server → client   text {"type": "started" | "exited" | "error" | "ping", …}
                      binary: 1 byte channel (1 stdout, 2 stderr), 8 bytes big-endian offset, data
    client → server   binary: stdin
                      text {"type": "stdin_end"}
                           {"type": "resize", "rows": …, "cols": …}
                           {"type": "signal", "signal": …}

After ``exited`` the server closes with 1000, after ``error`` with 4000 + the error's HTTP status. Leaving
does not end the exec. ``ping`` comes when nothing else has for a while. Both ways wait for the slower side,
and a message has a largest size.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from contextlib import aclosing
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandlot.api.answers import encoded
from sandlot.api.context import MAX_OFFSET, Service
from sandlot.api.streams import TAKEN_WITHIN_S, with_pings
from sandlot.domain.computer import Execution
from sandlot.domain.errors import Conflict, InvalidRequest, SandlotError, TooLarge
from sandlot.domain.execution import Channel, ExecEvent, Output
from sandlot.domain.service import SandboxService
from sandlot.wire.error_codes import problem_of
from sandlot.wire.exec_bodies import event_body

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
    await websocket.accept(headers=[(b"x-request-id", websocket.state.request_id.encode())])
    # TimeoutError: a client that reads nothing is cut off.
    with contextlib.suppress(WebSocketDisconnect, TimeoutError):
        try:
            execution = await service.attach_exec(session_id, exec_id, offset=_offset(websocket))
            try:
                await _converse(websocket, service, session_id, execution)
            finally:
                await execution.detach()
        except SandlotError as error:
            problem = problem_of(error, websocket.state.request_id)
            await _tell(websocket, "error", problem)
            await websocket.close(CLOSE_BASE + problem.status, problem.code)
        else:
            await websocket.close(1000)


def _offset(websocket: WebSocket) -> int:
    text = websocket.query_params.get("offset", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_OFFSET):
        raise InvalidRequest("offset must be a number of bytes")
    return int(text)


async def _converse(
    websocket: WebSocket, service: SandboxService, session_id: str, execution: Execution
) -> None:
    """Until the exec has exited, the client has left (``WebSocketDisconnect``), or something is wrong."""
    telling = asyncio.create_task(_tell_events(websocket, execution))
    listening = asyncio.create_task(_listen(websocket, service, session_id, execution))
    try:
        await asyncio.wait({telling, listening}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        telling.cancel()
        listening.cancel()
        await asyncio.gather(telling, listening, return_exceptions=True)
    for task in (telling, listening):
        if not task.cancelled():
            task.result()


async def _tell_events(websocket: WebSocket, execution: Execution) -> None:
    async with aclosing(with_pings(execution.events(), None)) as events:
        async for event in events:
            async with asyncio.timeout(TAKEN_WITHIN_S):
                await _tell_event(websocket, execution.exec_id, event)


async def _tell_event(websocket: WebSocket, exec_id: str, event: ExecEvent | None) -> None:
    if event is None:
        await websocket.send_text(PING)
    elif isinstance(event, Output):
        await websocket.send_bytes(HEADER.pack(CHANNELS[event.channel], event.offset) + event.data)
    else:
        name, body = event_body(exec_id, event)
        await _tell(websocket, name, body)


async def _tell(websocket: WebSocket, name: str, body: object) -> None:
    fields: dict[str, Any] = msgspec.to_builtins(body)
    await websocket.send_text(encoded({**fields, "type": name}).decode())


async def _listen(
    websocket: WebSocket, service: SandboxService, session_id: str, execution: Execution
) -> None:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        data, text = message.get("bytes"), message.get("text")
        if len(data or text or b"") > MAX_MESSAGE_BYTES:
            raise TooLarge(f"a message has at most {MAX_MESSAGE_BYTES} bytes")
        # The exec may have ended or closed its stdin meanwhile: as with any pipe, the events tell.
        with contextlib.suppress(Conflict):
            if data is not None:
                await execution.write_stdin(data)
            else:
                await _control(service, session_id, execution, text or "")


async def _control(service: SandboxService, session_id: str, execution: Execution, text: str) -> None:
    try:
        message = _MESSAGES.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"this message is not known: {error}") from None
    match message:
        case StdinEnd():
            await execution.close_stdin()
        case Resize(rows=rows, cols=cols):
            await service.resize_exec(session_id, execution.exec_id, rows=rows, cols=cols)
        case Signal(signal=signal):
            await service.signal_exec(session_id, execution.exec_id, signal)
