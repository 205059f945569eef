"""The history: what happened, page by page or as it happens."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.context import Service, check_parameters
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import JSON, encode_json
from sandlot.api.responses.streams import EVENT_STREAM, buffered_response, event_stream_response, format_sse
from sandlot.api.v1.downloads import attachment_response
from sandlot.domain.errors import InvalidRequest, SandlotError, SessionEnded
from sandlot.domain.history.events import parse_kind
from sandlot.domain.history.positions import Position
from sandlot.domain.history.query import MAX_EVENTS, MAX_WAIT_S, EventPage, EventQuery
from sandlot.domain.ids import is_session_id
from sandlot.domain.recordings.cast import MEDIA_TYPE
from sandlot.domain.service import SandboxService
from sandlot.domain.session_states import no_session_error
from sandlot.wire.error_codes import problem_of

# How long one look for new events waits. Pings go to the client more often.
FOLLOW_WAIT_S: Final = 30.0
SEND_TIMEOUT_S: Final = 60.0

router = APIRouter(prefix="/v1", tags=["history"], route_class=JsonRoute, responses=PROBLEMS)

_FORMATS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
        "description": f"The events; with `Accept: {EVENT_STREAM}`, as they happen",
    }
}

_RECORDING: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}, "description": "The recording"}
}


async def _filters(
    request: Request,
    kind: Annotated[
        list[str] | None, Query(description="Return only this kind of event. Can be repeated.")
    ] = None,
    since: Annotated[
        float | None, Query(description="Return only events from this time on, in seconds since 1970.")
    ] = None,
    until: Annotated[float | None, Query(description="Return only events before this time.")] = None,
    after: Annotated[str | None, Query(description="The `next` value of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS, description="Maximum number of events per page.")] = 100,
    wait_s: Annotated[
        float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for an event if there is none.")
    ] = 0,
    last_event_id: Annotated[
        str | None, Header(description="Continue a broken event stream after this event.")
    ] = None,
) -> EventQuery:
    if last_event_id is not None:
        try:
            Position.parse(last_event_id)
        except InvalidRequest:
            raise InvalidRequest(
                "Invalid Last-Event-ID. Send back the id of an event from this server, unchanged."
            ) from None
    return EventQuery(
        kinds=tuple(parse_kind(name) for name in kind or ()),
        since=since,
        until=until,
        after=after if last_event_id is None else last_event_id,
        limit=limit,
        wait_s=wait_s,
    )


Filters = Annotated[EventQuery, Depends(_filters)]
_NAMES: Final = ("kind", "since", "until", "after", "limit", "wait_s")


@router.get("/events", response_model=EventPage, responses=_FORMATS)
async def list_events(
    service: Service,
    request: Request,
    query: Filters,
    session: Annotated[str | None, Query(description="Return only this session's events.")] = None,
    thread: Annotated[str | None, Query(description="Return only events of this thread's sessions.")] = None,
    server: Annotated[
        bool,
        Query(
            description="Return the events that belong to no tenant, such as refused requests without a "
            "valid key. Needs the scope `fleet:operate`."
        ),
    ] = False,
) -> Response:
    """Return the events of your tenant, oldest first."""
    check_parameters(request, (*_NAMES, "session", "thread", "server"))
    return await _answer(service, request, replace(query, session_id=session, thread=thread, server=server))


@router.get("/sessions/{session_id}/history", response_model=EventPage, responses=_FORMATS)
async def session_history(service: Service, request: Request, query: Filters, session_id: str) -> Response:
    """Return a session's events, oldest first. They stay after the session's end."""
    check_parameters(request, _NAMES)
    if not is_session_id(session_id):
        raise no_session_error(session_id)
    query = replace(query, session_id=session_id)
    if query.after is None and not (await service.list_events(replace(query, limit=1, wait_s=0))).events:
        with contextlib.suppress(SessionEnded):  # its events were deleted since
            await service.get_session(session_id)  # raises if it never existed
    return await _answer(service, request, query)


@router.get("/sessions/{session_id}/recording", response_class=Response, responses=_RECORDING)
async def session_recording(service: Service, session_id: str) -> Response:
    """Return a session's recording, for a session that was created with `record`.

    It is an asciicast (version 2) of what commands wrote, for `asciinema play`. It stays after the
    session's end. Needs the scopes `sessions:read` and `exec`.
    """
    pieces = service.read_recording(session_id)
    return await attachment_response(pieces, MEDIA_TYPE, f"{session_id[:64]}.cast", ranges=False)


async def _answer(service: SandboxService, request: Request, query: EventQuery) -> Response:
    if EVENT_STREAM in request.headers.get("accept", ""):
        # An error in the first page, such as a missing scope, gets its own status.
        first = await service.list_events(replace(query, wait_s=0))
        return event_stream_response(_followed(service, query, first, request.state.request_id), _nothing)
    body = encode_json(await service.list_events(query))
    return buffered_response(body, JSON, timeout_s=SEND_TIMEOUT_S)


async def _followed(
    service: SandboxService, query: EventQuery, page: EventPage, request_id: str
) -> AsyncIterator[bytes]:
    """Each event's id is the cursor to continue with."""
    position = query.position
    missing: tuple[str, ...] = ()
    try:
        while True:
            for event in page.events:
                position = position.after([event.id])
                yield format_sse("event", event, str(position))
            position = Position.parse(page.next)
            if page.missing != missing:
                missing = page.missing
                yield format_sse("missing", {"workers": missing}, page.next)
            if not page.more and query.is_over(time.time()):
                return
            query = replace(query, after=page.next, wait_s=FOLLOW_WAIT_S)
            page = await service.list_events(query)
    except SandlotError as error:
        yield format_sse("error", problem_of(error, request_id), str(position))


async def _nothing() -> None:
    """Nothing is held open for a follower between two pages."""
