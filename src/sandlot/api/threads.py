"""Threads: the session of a conversation, and get-or-create and run in one round trip.

A thread's id stands in the path, percent-encoded; a ``/`` in it may stand as ``%2F`` or as itself, because
nothing else begins with ``/v1/threads/``.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.answers import answer
from sandlot.api.context import IdempotencyKey, Service, access_to
from sandlot.api.execs import wanted
from sandlot.api.problems import PROBLEMS
from sandlot.api.request_body import JsonRoute
from sandlot.api.results import PACKED_CONTENT, PACKED_TOLD, thread_run_answer
from sandlot.domain.errors import InvalidRequest, NotFound
from sandlot.domain.ids import is_thread
from sandlot.wire.exec_bodies import ThreadExecBody, ThreadRunBody
from sandlot.wire.http_bodies import SessionBody

router = APIRouter(prefix="/v1/threads", tags=["threads"], route_class=JsonRoute, responses=PROBLEMS)


@router.get("/{thread:path}", response_model=SessionBody)
async def get_thread(service: Service, request: Request, thread: str) -> Response:
    """The one session of this thread that lives or is lost."""
    page = await service.list_sessions(thread=thread, limit=1) if is_thread(thread) else None
    if page is None or not page.sessions:
        raise NotFound("this thread has no session")
    session = page.sessions[0]
    return answer(SessionBody.of(session, access_to(request, session)))


@router.post(
    "/{thread:path}/exec",
    response_model=ThreadRunBody,
    responses={200: {"content": PACKED_CONTENT, "description": PACKED_TOLD}},
)
async def execute_in_thread(
    service: Service,
    request: Request,
    thread: str,
    body: ThreadExecBody,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    if body.session.thread not in (None, thread):
        raise InvalidRequest("session.thread is another thread than the path's")
    if body.exec.background:
        raise InvalidRequest("a thread's exec is run to its end; start one in the background in its session")
    create = body.session.to_domain(thread=thread)
    run = await service.execute_in_thread(create, wanted(body.exec, idempotency_key), body.exec.stdin_bytes)
    return thread_run_answer(request, run, access_to(request, run.opened.session))
