"""Sessions: create, get, change, recreate, hibernate, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Body, Query
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.context import IdempotencyKey, Service, access_to, check_parameters
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import json_response
from sandlot.domain.capacity.usage import SandboxUsage
from sandlot.domain.session import Session
from sandlot.wire.http_bodies import CreateSessionBody, SessionBody, SessionChangeBody, SessionPageBody

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=JsonRoute, responses=PROBLEMS)


@router.post(
    "",
    status_code=201,
    response_model=SessionBody,
    responses={200: {"model": SessionBody, "description": "The thread or the key already has this session"}},
)
async def create_session(
    service: Service,
    request: Request,
    body: Annotated[CreateSessionBody, Body(default_factory=CreateSessionBody)],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create a session, or return the one that the thread or the idempotency key already has."""
    opened = await service.create_session(body.to_domain(idempotency_key=idempotency_key))
    location = {"Location": f"/v1/sessions/{opened.session.id}"}
    return _session_response(request, opened.session, 201 if opened.created else 200, location)


@router.get("", response_model=SessionPageBody)
async def list_sessions(
    service: Service,
    request: Request,
    thread: Annotated[str | None, Query(description="Return only this thread's session.")] = None,
    after: Annotated[str | None, Query(description="The `next` value of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries per page.")] = 100,
) -> Response:
    """List sessions that have not ended, oldest first."""
    check_parameters(request, ("thread", "after", "limit"))
    page = await service.list_sessions(thread=thread, after=after, limit=limit)
    return json_response(SessionPageBody.of(page))


@router.get("/{session_id}", response_model=SessionBody)
async def get_session(service: Service, request: Request, session_id: str) -> Response:
    """Return a session."""
    return _session_response(request, await service.get_session(session_id))


@router.get("/{session_id}/usage", response_model=SandboxUsage)
async def get_usage(service: Service, session_id: str) -> Response:
    """Measure what the session's sandbox uses: processor time, memory, processes and disk.

    It is no use of the session, and wakes none.
    """
    return json_response(await service.get_usage(session_id))


@router.patch("/{session_id}", response_model=SessionBody)
async def update_session(
    service: Service, request: Request, session_id: str, body: SessionChangeBody
) -> Response:
    """Change a session's timeouts or metadata."""
    return _session_response(request, await service.update_session(session_id, body.to_domain()))


@router.delete("/{session_id}", status_code=204)
async def delete_session(service: Service, session_id: str) -> Response:
    """Delete a session, its sandbox and its files. After the answer, no process is left.

    Its snapshots stay.
    """
    await service.delete_session(session_id)
    return Response(status_code=204)


@router.post("/{session_id}/recreate", response_model=SessionBody)
async def recreate_session(service: Service, request: Request, session_id: str) -> Response:
    """Replace a lost or unresponsive sandbox with a new one.

    It has the session's files. If they are gone too, the loss report says so.
    """
    return _session_response(request, await service.recreate_session(session_id))


@router.post("/{session_id}/hibernate", response_model=SessionBody)
async def hibernate_session(service: Service, request: Request, session_id: str) -> Response:
    """Remove the session's sandbox and keep its files. The session's next use gives it a new sandbox.

    Running commands and shells end first. A session that hibernates already stays as it is.
    """
    return _session_response(request, await service.hibernate_session(session_id))


def _session_response(
    request: Request, session: Session, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return json_response(SessionBody.of(session, access_to(request, session)), status, headers)
