"""Threads: get a conversation's session, or get-or-create it and run a command in one round trip.

A thread's id is part of the path, percent-encoded. A ``/`` in it may be written as ``%2F`` or as
itself, because no other route begins with ``/v1/threads/``.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.context import IdempotencyKey, Service, access_to
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import json_response
from sandlot.api.responses.results import PACKED_CONTENT, PACKED_DESCRIPTION, thread_run_response
from sandlot.api.v1.execs import to_exec_request
from sandlot.domain.errors import InvalidRequest, NotFound
from sandlot.domain.ids import is_thread
from sandlot.wire.exec_bodies import ThreadExecBody, ThreadRunBody
from sandlot.wire.http_bodies import SessionBody

router = APIRouter(prefix="/v1/threads", tags=["threads"], route_class=JsonRoute, responses=PROBLEMS)


@router.get("/{thread:path}", response_model=SessionBody)
async def get_thread(service: Service, request: Request, thread: str) -> Response:
    """Return the thread's session. Does not create one."""
    page = await service.list_sessions(thread=thread, limit=1) if is_thread(thread) else None
    if page is None or not page.sessions:
        raise NotFound("This thread has no session.")
    session = page.sessions[0]
    return json_response(SessionBody.of(session, access_to(request, session)))


@router.post(
    "/{thread:path}/exec",
    response_model=ThreadRunBody,
    responses={200: {"content": PACKED_CONTENT, "description": PACKED_DESCRIPTION}},
)
async def execute_in_thread(
    service: Service,
    request: Request,
    thread: str,
    body: ThreadExecBody,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Get or create the thread's session and run a command in it, in one request."""
    if body.session.thread not in (None, thread):
        raise InvalidRequest("session.thread must be the thread in the path.")
    if body.exec.background:
        raise InvalidRequest(
            "A thread's exec cannot run in the background. Start it in the thread's session: POST "
            "/v1/sessions/{session_id}/execs."
        )
    create = body.session.to_domain(thread=thread)
    run = await service.execute_in_thread(
        create, to_exec_request(body.exec, idempotency_key), body.exec.stdin_bytes
    )
    return thread_run_response(request, run, access_to(request, run.opened.session))
