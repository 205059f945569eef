"""A cell's events as the lines that E2B's SDK reads."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, Final

from sandlot.api.responses.json import encode_json
from sandlot.domain.capacity.budget import hold
from sandlot.domain.code.events import CellCount, CellData, CellError, CellEvent, CellText, EventLines
from sandlot.domain.computer import Execution
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import Channel, Exited, Output, Verdict, verdict_of

KEEPALIVE: Final = b'{"type":"keepalive"}\n'
END: Final = b'{"type":"end_of_execution"}\n'
# A line is in memory as bytes, as values and as the bytes that are sent.
_COPIES: Final = 3
_NAMES: Final = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
# Why a cell ended that raised no error of its own.
_ENDED: Final = {
    Verdict.TIMEOUT: ("TimeoutError", "The code took longer than this server allows and was interrupted."),
    Verdict.OOM: ("MemoryError", "The sandbox ran out of memory."),
    Verdict.KILLED: ("KeyboardInterrupt", "The code was interrupted."),
    Verdict.DISK_FULL: ("OSError", "The sandbox's disk is full."),
}


async def cell_lines(execution: Execution) -> AsyncIterator[bytes]:
    lines, next_offset, held, failed = EventLines(), 0, 0, False
    try:
        async for event in execution.events():
            if isinstance(event, Output) and event.channel is Channel.STDOUT:
                if event.offset > next_offset:
                    lines.skip()
                next_offset = event.offset + len(event.data)
                for each in lines.feed(event.data):
                    failed = failed or isinstance(each, CellError)
                    if (body := _body(each)) is not None:
                        yield _line(body)
                if (size := lines.waiting_bytes) > held:
                    hold(_COPIES * (size - held))
                    held = size
            elif isinstance(event, Output):
                next_offset = event.offset + len(event.data)
            elif isinstance(event, Exited) and not failed and (why := _ended(event)) is not None:
                yield _line(_error(*why))
    except SandlotError as error:
        yield _line(_error("SandboxError", error.message))
    yield END


def _ended(exited: Exited) -> tuple[str, str] | None:
    if exited.reason == "start_failed":
        return "SandboxError", exited.error or "The code could not be started."
    return _ENDED.get(verdict_of(exited))


def _body(event: CellEvent) -> dict[str, Any] | None:
    """None for what E2B's SDK has no line for: updates of displays that it was given already."""
    match event:
        case CellText(channel, text):
            return {"type": channel, "text": text, "timestamp": time.time_ns()}
        case CellData() if not event.update:
            return {"type": "result", "is_main_result": event.main, **_forms(event)}
        case CellError(name, value, traceback):
            return _error(name, value, "\n".join(traceback))
        case CellCount(count):
            return {"type": "number_of_executions", "execution_count": count}
    return None


def _forms(event: CellData) -> dict[str, Any]:
    named = {_NAMES[kind]: value for kind, value in event.data.items() if kind in _NAMES}
    extra = {kind: value for kind, value in event.data.items() if kind not in _NAMES}
    return named | ({"extra": extra} if extra else {})


def _error(name: str, value: str, traceback: str = "") -> dict[str, Any]:
    return {"type": "error", "name": name, "value": value, "traceback": traceback or f"{name}: {value}"}


def _line(body: object) -> bytes:
    return encode_json(body) + b"\n"
