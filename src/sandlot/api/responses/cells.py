"""A cell's events as a response: one JSON object in each line.

The lines come out of a sandbox. Each is parsed and written anew, so a client gets only events.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from sandlot.api.responses.json import encode_json
from sandlot.api.responses.streams import StreamedResponse, with_pings
from sandlot.domain.capacity.budget import hold
from sandlot.domain.code.events import EventLines, event_body
from sandlot.domain.computer import Execution
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import Channel, Exited, Output, Started, verdict_of
from sandlot.wire.code.context_bodies import CellEndBody
from sandlot.wire.error_codes import problem_of

NDJSON: Final = "application/x-ndjson"
PING: Final = b'{"type":"ping"}\n'
# A line is in memory as bytes, as values and as the bytes that are sent.
COPIES: Final = 3


def cell_response(execution: Execution, request_id: str) -> StreamedResponse:
    # X-Accel-Buffering: nginx must not buffer the events.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamedResponse(
        with_pings(_lines(execution, request_id), PING),
        release=execution.detach,
        media_type=NDJSON,
        headers=headers,
    )


async def _lines(execution: Execution, request_id: str) -> AsyncIterator[bytes]:
    lines, next_offset, held, missing = EventLines(), 0, 0, False
    try:
        async for event in execution.events():
            if isinstance(event, Started):
                yield _line({"type": "started", "exec_id": execution.exec_id, "existing": event.existing})
            elif isinstance(event, Output):
                if event.offset > next_offset:
                    lines.skip()
                    missing = True
                next_offset = event.offset + len(event.data)
                if event.channel is not Channel.STDOUT:
                    continue
                for each in lines.feed(event.data):
                    yield _line(event_body(each))
                if (size := lines.waiting_bytes) > held:
                    hold(COPIES * (size - held))
                    held = size
            elif isinstance(event, Exited):
                yield _line(
                    CellEndBody(
                        execution.exec_id,
                        event.code,
                        verdict_of(event),
                        event.duration_ms,
                        truncated=missing or event.truncated,
                    )
                )
    except SandlotError as error:
        yield encode_json({"type": "problem", "problem": problem_of(error, request_id)}) + b"\n"


def _line(body: object) -> bytes:
    return encode_json(body) + b"\n"
