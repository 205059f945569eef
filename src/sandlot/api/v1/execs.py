"""Execs and shells: run, start, inspect, wait, signal, kill; as JSON or as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.context import MAX_OFFSET, IdempotencyKey, Offset, Service, check_range
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import json_response
from sandlot.api.responses.lists import count_against_budget, entries_response
from sandlot.api.responses.results import PACKED_CONTENT, PACKED_DESCRIPTION, result_response, status_response
from sandlot.api.responses.streams import EVENT_STREAM, event_stream_response, exec_events
from sandlot.domain.computer import Execution
from sandlot.domain.errors import Conflict, IdempotencyMismatch, InvalidRequest, SandlotError
from sandlot.domain.execution import ExecRequest
from sandlot.wire.exec_bodies import (
    ExecBody,
    ExecListBody,
    ExecStatusBody,
    PtyBody,
    ResultBody,
    ShellListBody,
    SignalBody,
    SignalledBody,
)

# A client's disconnect goes unnoticed while it waits. To wait longer, a client asks again.
MAX_WAIT_S = 60.0
MAX_SIGNAL = 64
MAX_PTY = 65_535

router = APIRouter(
    prefix="/v1/sessions/{session_id}", tags=["execs"], route_class=JsonRoute, responses=PROBLEMS
)

_RESULT_FORMATS: dict[str, Any] = {
    "content": {EVENT_STREAM: {"schema": {"type": "string"}}, **PACKED_CONTENT},
    "description": f"{PACKED_DESCRIPTION}; with `Accept: {EVENT_STREAM}`, the events as they happen",
}


def to_exec_request(body: ExecBody, idempotency_key: str | None) -> ExecRequest:
    if body.pty is not None:
        check_range("pty.rows", body.pty.rows, 1, MAX_PTY)
        check_range("pty.cols", body.pty.cols, 1, MAX_PTY)
    return body.to_domain(exec_id=idempotency_key)


@router.post(
    "/exec",
    response_model=ResultBody,
    responses={
        200: _RESULT_FORMATS,
        202: {"model": ExecStatusBody, "description": "Started in the background"},
    },
)
async def execute(
    service: Service,
    request: Request,
    session_id: str,
    body: ExecBody,
    offset: Offset = 0,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run a command. It runs on if the client disconnects; ask for it again by its exec id.

    The idempotency key becomes the exec id if the body has none.
    """
    try:
        return await _execute(
            service, request, session_id, body, offset, to_exec_request(body, idempotency_key)
        )
    except Conflict as error:
        if body.exec_id is None and idempotency_key is not None:
            raise IdempotencyMismatch(
                "This idempotency key was already used for a different command in this session. Use a "
                "new key."
            ) from error
        raise


async def _execute(
    service: Service,
    request: Request,
    session_id: str,
    body: ExecBody,
    offset: int,
    exec_request: ExecRequest,
) -> Response:
    stdin = body.stdin_bytes
    if body.background:
        execution = await service.start_exec(session_id, exec_request)
        writer = asyncio.create_task(_write_stdin_and_detach(execution, stdin, keep_open=body.stdin))
        tasks: set[asyncio.Task[None]] = request.app.state.stdin_writers
        tasks.add(writer)
        writer.add_done_callback(tasks.discard)
        try:
            status = await service.get_exec(session_id, exec_request.exec_id)
        except SandlotError as error:
            error.may_have_executed = True
            error.details.setdefault("exec_id", exec_request.exec_id)
            raise
        return status_response(request, status, 202)  # a known id may have its result already
    if EVENT_STREAM in request.headers.get("accept", ""):
        execution = await service.start_exec(session_id, exec_request, offset=offset)
        return _events_with_stdin(execution, offset, request.state.request_id, stdin, keep_open=body.stdin)
    return result_response(request, await service.execute(session_id, exec_request, stdin))


def _events_with_stdin(
    execution: Execution, offset: int, request_id: str, stdin: bytes | None, *, keep_open: bool
) -> Response:
    """Stream the exec's events while a task writes its stdin.

    The two run concurrently: a command that prints before it has read all of its input would hang
    otherwise.
    """
    writer = asyncio.create_task(_write_stdin(execution, stdin, keep_open=keep_open))

    async def release() -> None:
        writer.cancel()
        await asyncio.wait({writer})
        await execution.detach()

    return event_stream_response(exec_events(execution, offset, request_id), release)


async def _write_stdin(execution: Execution, stdin: bytes | None, *, keep_open: bool) -> None:
    if stdin is None:
        return
    # The command may end without reading its stdin. Its result shows that.
    with contextlib.suppress(SandlotError):
        await execution.write_stdin(stdin)
        if not keep_open:
            await execution.close_stdin()


async def _write_stdin_and_detach(execution: Execution, stdin: bytes | None, *, keep_open: bool) -> None:
    try:
        await _write_stdin(execution, stdin, keep_open=keep_open)
    finally:
        await execution.detach()


@router.get("/execs", response_model=ExecListBody)
async def list_execs(service: Service, session_id: str) -> Response:
    """List the execs that run, and those that ended and are still remembered."""
    return await entries_response("execs", await count_against_budget(service.list_execs(session_id)))


@router.get("/execs/{exec_id}", response_model=ExecStatusBody, responses={200: _RESULT_FORMATS})
async def get_exec(
    service: Service,
    request: Request,
    session_id: str,
    exec_id: str,
    wait_s: Annotated[
        float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for the command to end.")
    ] = 0,
    offset: Offset = 0,
    last_event_id: Annotated[
        str | None, Header(description="Continue a broken event stream after this event.")
    ] = None,
) -> Response:
    """Return whether a command runs, and its result once it has ended; or its events."""
    if EVENT_STREAM not in request.headers.get("accept", ""):
        return status_response(request, await service.get_exec(session_id, exec_id, wait_s=wait_s))
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 20):
            raise InvalidRequest(
                "Invalid Last-Event-ID. Send back the id of an event from this server, unchanged."
            )
        offset = check_range("Last-Event-ID", int(last_event_id), 0, MAX_OFFSET)
    execution = await service.attach_exec(session_id, exec_id, offset=offset)
    events = exec_events(execution, offset, request.state.request_id)
    return event_stream_response(events, release=execution.detach)


@router.delete("/execs/{exec_id}", response_model=SignalledBody)
async def kill_exec(service: Service, session_id: str, exec_id: str) -> Response:
    """Kill every process of a command."""
    return json_response(SignalledBody(await service.kill_exec(session_id, exec_id)))


@router.post("/execs/{exec_id}/signal", response_model=SignalledBody)
async def signal_exec(service: Service, session_id: str, exec_id: str, body: SignalBody) -> Response:
    """Send a signal to every process of a command."""
    check_range("signal", body.signal, 1, MAX_SIGNAL)
    return json_response(SignalledBody(await service.signal_exec(session_id, exec_id, body.signal)))


@router.post("/execs/{exec_id}/resize", status_code=204)
async def resize_exec(service: Service, session_id: str, exec_id: str, body: PtyBody) -> Response:
    """Change the size of a command's terminal."""
    await service.resize_exec(session_id, exec_id, rows=body.rows, cols=body.cols)
    return Response(status_code=204)


@router.get("/shells", response_model=ShellListBody)
async def list_shells(service: Service, session_id: str) -> Response:
    """List the shells that run."""
    return await entries_response("shells", await count_against_budget(service.list_shells(session_id)))


@router.delete("/shells/{name}", status_code=204)
async def close_shell(service: Service, session_id: str, name: str) -> Response:
    """End a shell and everything that runs in it."""
    await service.close_shell(session_id, name)
    return Response(status_code=204)
