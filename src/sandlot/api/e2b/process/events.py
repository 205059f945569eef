"""A process's events as messages of the stream that its client reads."""

from __future__ import annotations

import base64
import signal
from collections.abc import AsyncIterator
from typing import Final

from sandlot.api.e2b.connect_rpc import Json, end_of_stream, message
from sandlot.api.e2b.errors import connect_error
from sandlot.api.responses.streams import with_pings
from sandlot.domain.capacity.budget import hold, release
from sandlot.domain.computer import Execution
from sandlot.domain.e2b.names import is_terminal, pid_of
from sandlot.domain.errors import SandboxLost, SandlotError
from sandlot.domain.execution import Channel, Exited, Output, Started

_KEEPALIVE: Final = message({"event": {"keepalive": {}}})
DEFAULT_KEEPALIVE_S: Final = 50.0


def keepalive_of(header: str | None) -> float:
    """The seconds between two keepalives that the client asks for."""
    if header is None or not (header.isascii() and header.isdigit() and len(header) <= 5):
        return DEFAULT_KEEPALIVE_S
    return float(max(1, int(header)))


async def process_events(execution: Execution, keepalive_s: float) -> AsyncIterator[bytes]:
    pid, terminal, started = pid_of(execution.exec_id), is_terminal(execution.exec_id), False
    try:
        async for event in with_pings(execution.events(), None, keepalive_s):
            if event is None:
                yield _KEEPALIVE
            elif isinstance(event, Started):
                started = True
                yield message({"event": {"start": {"pid": pid}}})
            elif isinstance(event, Output):
                name = "pty" if terminal else "stdout" if event.channel is Channel.STDOUT else "stderr"
                text = base64.b64encode(event.data).decode()
                hold(len(text))
                yield message({"event": {"data": {name: text}}})
                release(len(text))
            elif (error := _error_of(event, started=started)) is not None:
                yield end_of_stream(error)
                return
            else:
                yield message({"event": {"end": _end(event)}})
    except SandboxLost as error:
        yield end_of_stream(
            {**connect_error(error), "message": f"The sandbox was not found: {error.message}"}
        )
    except SandlotError as error:
        yield end_of_stream(connect_error(error))
    else:
        yield end_of_stream()


def _error_of(exited: Exited, *, started: bool) -> dict[str, str] | None:
    """The error of a stream whose process has no exit status to tell of."""
    if exited.reason == "timeout":
        return {"code": "deadline_exceeded", "message": "the command took longer than its timeout"}
    if exited.reason == "start_failed" or not started:
        return {"code": "invalid_argument", "message": exited.error or "the command could not be started"}
    return None


def _end(exited: Exited) -> Json:
    """As envd says it: a process that a signal has ended has no exit code but -1."""
    if exited.signal:
        status = f"signal: {_name_of(exited.signal)}"
        why = _why(exited)
        return {"exitCode": -1, "exited": False, "status": status, "error": f"{status}{why}"}
    status = f"exit status {exited.code}"
    end: Json = {"exitCode": exited.code, "exited": True, "status": status}
    if exited.code:
        end["error"] = status + _why(exited)
    return end


def _why(exited: Exited) -> str:
    if exited.reason == "oom" or exited.oom:
        return " (the sandbox ran out of memory)"
    if exited.disk_full:
        return " (the sandbox's disk was full)"
    if exited.denied:
        return f" ({exited.denied[-1].target} is not allowed by the sandbox's network policy)"
    return ""


def _name_of(number: int) -> str:
    """As Go names it, which envd is written in."""
    known = {
        signal.SIGKILL: "killed",
        signal.SIGTERM: "terminated",
        signal.SIGINT: "interrupt",
        signal.SIGSEGV: "segmentation fault",
        signal.SIGABRT: "aborted",
        signal.SIGPIPE: "broken pipe",
        signal.SIGHUP: "hangup",
    }
    return (
        known.get(signal.Signals(number), f"signal {number}")
        if number in set(signal.Signals)
        else str(number)
    )
