"""Sessions: create, look, change, make anew, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Body, Query
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.answers import answer
from sandlot.api.context import IdempotencyKey, Service, access_to
from sandlot.api.problems import PROBLEMS
from sandlot.api.request_body import JsonRoute
from sandlot.domain.session import Session
from sandlot.wire.http_bodies import CreateSessionBody, SessionBody, SessionChangeBody, SessionPageBody

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=JsonRoute, responses=PROBLEMS)


@router.post(
    "",
    status_code=201,
    response_model=SessionBody,
    responses={200: {"model": SessionBody, "description": "The thread or the key has its session already"}},
)
async def create_session(
    service: Service,
    request: Request,
    body: Annotated[CreateSessionBody, Body(default_factory=CreateSessionBody)],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    opened = await service.create_session(body.to_domain(idempotency_key=idempotency_key))
    location = {"Location": f"/v1/sessions/{opened.session.id}"}
    return _told(request, opened.session, 201 if opened.created else 200, location)


@router.get("", response_model=SessionPageBody)
async def list_sessions(
    service: Service,
    thread: str | None = None,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    page = await service.list_sessions(thread=thread, after=after, limit=limit)
    return answer(SessionPageBody.of(page))


@router.get("/{session_id}", response_model=SessionBody)
async def get_session(service: Service, request: Request, session_id: str) -> Response:
    return _told(request, await service.get_session(session_id))


@router.patch("/{session_id}", response_model=SessionBody)
async def update_session(
    service: Service, request: Request, session_id: str, body: SessionChangeBody
) -> Response:
    return _told(request, await service.update_session(session_id, body.to_domain()))


@router.delete("/{session_id}", status_code=204)
async def delete_session(service: Service, session_id: str) -> Response:
    """When this answers, no process of the session is left."""
    await service.delete_session(session_id)
    return Response(status_code=204)


@router.post("/{session_id}/recreate", response_model=SessionBody)
async def recreate_session(service: Service, request: Request, session_id: str) -> Response:
    """A new sandbox for a session that lost its own."""
    return _told(request, await service.recreate_session(session_id))


def _told(
    request: Request, session: Session, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return answer(SessionBody.of(session, access_to(request, session)), status, headers)
