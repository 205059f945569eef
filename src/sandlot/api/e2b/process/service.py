"""The methods of ``process.Process``: start, follow, list, signal and feed processes.

A process is an exec: it outlives the request that started it, and the server that took the request.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from starlette.responses import Response

from sandlot.api.context import MAX_OFFSET
from sandlot.api.e2b.bodies import read_body
from sandlot.api.e2b.calls import Handler, SandboxCall
from sandlot.api.e2b.connect_rpc import STREAM, end_of_stream, message, messages, only_message, timeout_of
from sandlot.api.e2b.process.bodies import (
    Selected,
    SendInput,
    SendSignal,
    Size,
    Start,
    StreamInput,
    Update,
)
from sandlot.api.e2b.process.events import keepalive_of, process_events
from sandlot.api.e2b.process.selecting import running, summary_of
from sandlot.api.responses.json import json_response
from sandlot.api.responses.streams import StreamedResponse
from sandlot.domain.computer import ExecSummary, Execution
from sandlot.domain.e2b.names import new_exec_id, pid_of
from sandlot.domain.errors import InvalidRequest, NotFound, Unsupported
from sandlot.domain.execution import ExecRequest, PtySize

_SIGNALS: Final = {"SIGNAL_SIGTERM": 15, 15: 15, "SIGNAL_SIGKILL": 9, 9: 9}
_LOGIN_SHELL: Final = "/bin/bash -l -c "


async def start(call: SandboxCall) -> Response:
    body = read_body(only_message(await call.request.body()), Start)
    timeout_s = timeout_of(call.header("connect-timeout-ms"))
    call.check_user()
    if body.tag is not None:
        raise Unsupported("Processes have no tags here. Leave out the tag, and use the pid.")
    config, terminal = body.process, body.pty is not None
    execution = await call.service.start_exec(
        call.session_id,
        ExecRequest(
            argv=(config.cmd, *config.args),
            exec_id=new_exec_id(terminal=terminal),
            cwd=config.cwd,
            env=config.envs,
            timeout_s=timeout_s,
            # The client gets all output as it comes. Nobody asks for it again later.
            output_limit=None,
            stdin=body.stdin is not False or terminal,
            pty=None if body.pty is None else _pty(body.pty.size),
        ),
    )
    return _followed(call, execution)


async def connect(call: SandboxCall) -> Response:
    """Follow a process from now on. One that has ended tells how."""
    body = read_body(only_message(await call.request.body()), Selected)
    summary = await summary_of(call, body.process)
    offset = MAX_OFFSET if summary.output_end is None else summary.output_end
    execution = await call.service.attach_exec(call.session_id, summary.exec_id, offset=offset)
    return _followed(call, execution)


def _followed(call: SandboxCall, execution: Execution) -> Response:
    return StreamedResponse(
        process_events(execution, keepalive_of(call.header("keepalive-ping-interval"))),
        release=execution.detach,
        media_type=STREAM,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def list_processes(call: SandboxCall) -> Response:
    summaries = await call.service.list_execs(call.session_id)
    return json_response(
        {
            "processes": [
                {"pid": pid_of(summary.exec_id), "config": _config(summary)}
                for summary in summaries
                if summary.running
            ]
        }
    )


def _config(summary: ExecSummary) -> dict[str, object]:
    if summary.command.startswith(_LOGIN_SHELL):
        return {"cmd": "/bin/bash", "args": ["-l", "-c", summary.command.removeprefix(_LOGIN_SHELL)]}
    return {"cmd": summary.command}


async def send_input(call: SandboxCall) -> Response:
    body = read_body(await call.request.body(), SendInput)
    execution = await _to_write_to(call, await running(call, body.process))
    try:
        await execution.write_stdin(body.input.data)
    finally:
        await execution.detach()
    return json_response({})


async def stream_input(call: SandboxCall) -> Response:
    """Feed a process for as long as the client sends. The input stays open afterwards."""
    execution: Execution | None = None
    try:
        async with aclosing(messages(call.request.stream())) as sent:  # type: ignore[type-var]
            async for data in sent:
                body = read_body(data, StreamInput)
                if body.start is not None:
                    if execution is not None:
                        raise InvalidRequest("The stream names its process twice.")
                    execution = await _to_write_to(call, await running(call, body.start.process))
                elif body.data is not None:
                    if execution is None:
                        raise InvalidRequest("The stream must begin with the process that it is for.")
                    await execution.write_stdin(body.data.input.data)
    finally:
        if execution is not None:
            await execution.detach()
    return Response(message({}) + end_of_stream(), media_type=STREAM)


async def close_stdin(call: SandboxCall) -> Response:
    body = read_body(await call.request.body(), Selected)
    execution = await _to_write_to(call, await running(call, body.process))
    try:
        await execution.close_stdin()
    finally:
        await execution.detach()
    return json_response({})


async def _to_write_to(call: SandboxCall, exec_id: str) -> Execution:
    return await call.service.attach_exec(call.session_id, exec_id, offset=MAX_OFFSET)


async def send_signal(call: SandboxCall) -> Response:
    body = read_body(await call.request.body(), SendSignal)
    number = _SIGNALS.get(body.signal)
    if number is None:
        raise InvalidRequest(
            f"signal must be one of SIGNAL_SIGTERM and SIGNAL_SIGKILL, not {body.signal!r:.40}."
        )
    exec_id = await running(call, body.process)
    if not await call.service.signal_exec(call.session_id, exec_id, number):
        raise NotFound(f"process with pid {body.process.pid} has ended")
    return json_response({})


async def update(call: SandboxCall) -> Response:
    body = read_body(await call.request.body(), Update)
    exec_id = await running(call, body.process)
    if body.pty is not None:
        size = _pty(body.pty.size)
        await call.service.resize_exec(call.session_id, exec_id, rows=size.rows, cols=size.cols)
    return json_response({})


def _pty(size: Size) -> PtySize:
    default = PtySize()
    return PtySize(rows=size.rows or default.rows, cols=size.cols or default.cols)


METHODS: Final[dict[str, Handler]] = {
    "/process.Process/Start": start,
    "/process.Process/Connect": connect,
    "/process.Process/List": list_processes,
    "/process.Process/SendInput": send_input,
    "/process.Process/StreamInput": stream_input,
    "/process.Process/CloseStdin": close_stdin,
    "/process.Process/SendSignal": send_signal,
    "/process.Process/Update": update,
}
