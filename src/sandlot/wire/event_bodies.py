"""The bodies of an exec's events: server-sent events, and the text messages of an attached WebSocket."""

from __future__ import annotations

from dataclasses import dataclass

from sandlot.domain.execution import (
    Channel,
    ExecEvent,
    Exited,
    Output,
    Started,
    Verdict,
    verdict_of,
)
from sandlot.wire.exec_bodies import bytes_of, text_and_base64, verdict_for_sdk


@dataclass(frozen=True, slots=True)
class StartedBody:
    exec_id: str
    pid: int
    existing: bool


@dataclass(frozen=True, slots=True)
class OutputBody:
    channel: Channel
    offset: int
    text: str
    base64: str | None = None


@dataclass(frozen=True, slots=True)
class ExitedBody:
    verdict: Verdict
    exited: Exited


EventBody = StartedBody | OutputBody | ExitedBody
EVENT_BODIES: dict[str, type[StartedBody] | type[OutputBody] | type[ExitedBody]] = {
    "started": StartedBody,
    "output": OutputBody,
    "exited": ExitedBody,
}


def event_body(exec_id: str, event: ExecEvent) -> tuple[str, EventBody]:
    """The event's name on the wire, and its body."""
    if isinstance(event, Started):
        return "started", StartedBody(exec_id, event.pid, event.existing)
    if isinstance(event, Output):
        text, exact = text_and_base64(event.data)
        return "output", OutputBody(event.channel, event.offset, text, exact)
    return "exited", ExitedBody(verdict_for_sdk(verdict_of(event)), event)


def event_of(body: EventBody) -> ExecEvent:
    if isinstance(body, StartedBody):
        return Started(body.pid, body.existing)
    if isinstance(body, OutputBody):
        return Output(body.channel, body.offset, bytes_of(body.text, body.base64))
    return body.exited
