"""Execs and shells: run, start, look, wait, signal, kill; as JSON or as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.answers import answer
from sandlot.api.context import MAX_OFFSET, IdempotencyKey, Offset, Service, within
from sandlot.api.file_lists import counted, entries_answer
from sandlot.api.problems import PROBLEMS
from sandlot.api.request_body import JsonRoute
from sandlot.api.results import PACKED_CONTENT, PACKED_TOLD, result_answer, status_answer
from sandlot.api.streams import EVENT_STREAM, events_answer, exec_events
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

MAX_WAIT_S = 60.0  # one that has gone is not noticed before; who wants to wait longer asks again
MAX_SIGNAL = 64
MAX_PTY = 65_535

router = APIRouter(
    prefix="/v1/sessions/{session_id}", tags=["execs"], route_class=JsonRoute, responses=PROBLEMS
)

_FORMS: dict[str, Any] = {
    "content": {EVENT_STREAM: {"schema": {"type": "string"}}, **PACKED_CONTENT},
    "description": f"{PACKED_TOLD}; with Accept: {EVENT_STREAM} the events started, output…, exited or error",
}


def wanted(body: ExecBody, idempotency_key: str | None) -> ExecRequest:
    if body.pty is not None:
        within("pty.rows", body.pty.rows, 1, MAX_PTY)
        within("pty.cols", body.pty.cols, 1, MAX_PTY)
    return body.to_domain(exec_id=idempotency_key)


@router.post(
    "/exec",
    response_model=ResultBody,
    responses={
        200: _FORMS,
        202: {"model": ExecStatusBody, "description": "Started: background was asked for"},
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
    """Runs a command. The exec goes on if the client goes away; ask for it again by its id.

    The idempotency key is the exec's id where the body has none.
    """
    try:
        return await _execute(service, request, session_id, body, offset, wanted(body, idempotency_key))
    except Conflict as error:
        if body.exec_id is None and idempotency_key is not None:
            raise IdempotencyMismatch(
                "the idempotency key was used for another command here; take a new key for a new one"
            ) from error
        raise


async def _execute(
    service: Service, request: Request, session_id: str, body: ExecBody, offset: int, asked: ExecRequest
) -> Response:
    stdin = body.stdin_bytes
    if body.background:
        execution = await service.start_exec(session_id, asked)
        feeding = asyncio.create_task(_feed_and_let_go(execution, stdin, stays_open=body.stdin))
        tasks: set[asyncio.Task[None]] = request.app.state.feeding
        tasks.add(feeding)
        feeding.add_done_callback(tasks.discard)
        try:
            status = await service.get_exec(session_id, asked.exec_id)
        except SandlotError as error:
            error.may_have_executed = True
            error.details.setdefault("exec_id", asked.exec_id)
            raise
        return status_answer(request, status, 202)  # an id that is known has its result already
    if EVENT_STREAM in request.headers.get("accept", ""):
        execution = await service.start_exec(session_id, asked, offset=offset)
        return _fed_events(execution, offset, request.state.request_id, stdin, stays_open=body.stdin)
    return result_answer(request, await service.execute(session_id, asked, stdin))


def _fed_events(
    execution: Execution, offset: int, request_id: str, stdin: bytes | None, *, stays_open: bool
) -> Response:
    """Input goes beside the reading, or a command that answers before it has all of its input would hang."""
    feeding = asyncio.create_task(_feed(execution, stdin, stays_open=stays_open))

    async def let_go() -> None:
        feeding.cancel()
        await asyncio.wait({feeding})
        await execution.detach()

    return events_answer(exec_events(execution, offset, request_id), let_go)


async def _feed(execution: Execution, stdin: bytes | None, *, stays_open: bool) -> None:
    if stdin is None:
        return
    with contextlib.suppress(SandlotError):  # it may end without reading its input; its result tells
        await execution.write_stdin(stdin)
        if not stays_open:
            await execution.close_stdin()


async def _feed_and_let_go(execution: Execution, stdin: bytes | None, *, stays_open: bool) -> None:
    try:
        await _feed(execution, stdin, stays_open=stays_open)
    finally:
        await execution.detach()


@router.get("/execs", response_model=ExecListBody)
async def list_execs(service: Service, session_id: str) -> Response:
    return await entries_answer("execs", await counted(service.list_execs(session_id)))


@router.get("/execs/{exec_id}", response_model=ExecStatusBody, responses={200: _FORMS})
async def get_exec(
    service: Service,
    request: Request,
    session_id: str,
    exec_id: str,
    wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for its end.")] = 0,
    offset: Offset = 0,
    last_event_id: Annotated[str | None, Header(description="Where a broken event stream goes on.")] = None,
) -> Response:
    if EVENT_STREAM not in request.headers.get("accept", ""):
        return status_answer(request, await service.get_exec(session_id, exec_id, wait_s=wait_s))
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 20):
            raise InvalidRequest("Last-Event-ID is not one that this server gave")
        offset = within("Last-Event-ID", int(last_event_id), 0, MAX_OFFSET)
    execution = await service.attach_exec(session_id, exec_id, offset=offset)
    events = exec_events(execution, offset, request.state.request_id)
    return events_answer(events, let_go=execution.detach)


@router.delete("/execs/{exec_id}", response_model=SignalledBody)
async def kill_exec(service: Service, session_id: str, exec_id: str) -> Response:
    """Kills every process of the exec."""
    return answer(SignalledBody(await service.kill_exec(session_id, exec_id)))


@router.post("/execs/{exec_id}/signal", response_model=SignalledBody)
async def signal_exec(service: Service, session_id: str, exec_id: str, body: SignalBody) -> Response:
    within("signal", body.signal, 1, MAX_SIGNAL)
    return answer(SignalledBody(await service.signal_exec(session_id, exec_id, body.signal)))


@router.post("/execs/{exec_id}/resize", status_code=204)
async def resize_exec(service: Service, session_id: str, exec_id: str, body: PtyBody) -> Response:
    await service.resize_exec(session_id, exec_id, rows=body.rows, cols=body.cols)
    return Response(status_code=204)


@router.get("/shells", response_model=ShellListBody)
async def list_shells(service: Service, session_id: str) -> Response:
    return await entries_answer("shells", await counted(service.list_shells(session_id)))


@router.delete("/shells/{name}", status_code=204)
async def close_shell(service: Service, session_id: str, name: str) -> Response:
    await service.close_shell(session_id, name)
    return Response(status_code=204)
