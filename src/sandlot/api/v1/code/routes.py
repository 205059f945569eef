"""Code contexts: list, create, interrupt, restart, delete, and run code in one."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.context import IdempotencyKey, Service
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.cells import NDJSON, cell_response
from sandlot.api.responses.json import json_response
from sandlot.api.responses.lists import count_against_budget, entries_response
from sandlot.domain.code.contexts import Context
from sandlot.wire.code.context_bodies import ContextListBody, CreateContextBody, RunCellBody

router = APIRouter(
    prefix="/v1/sessions/{session_id}/contexts", tags=["code"], route_class=JsonRoute, responses=PROBLEMS
)

_LINES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {NDJSON: {"schema": {"type": "string"}}},
        "description": "The code's events as they happen, one JSON object in each line; the last has the "
        "type `end`, or `problem` if the events broke off",
    }
}


@router.get("", response_model=ContextListBody)
async def list_contexts(service: Service, session_id: str) -> Response:
    """List the contexts of a session."""
    return await entries_response("contexts", await count_against_budget(service.list_contexts(session_id)))


@router.post("", response_model=Context, status_code=201)
async def create_context(service: Service, session_id: str, body: CreateContextBody) -> Response:
    """Create a context, which keeps the variables of code that runs in it."""
    return json_response(await service.create_context(session_id, body.to_domain()), 201)


@router.delete("/{context}", status_code=204)
async def delete_context(service: Service, session_id: str, context: str) -> Response:
    """End a context."""
    await service.delete_context(session_id, context)
    return Response(status_code=204)


@router.post("/{context}/interrupt", status_code=204)
async def interrupt_context(service: Service, session_id: str, context: str) -> Response:
    """Interrupt what a context runs. Its variables stay."""
    await service.interrupt_context(session_id, context)
    return Response(status_code=204)


@router.post("/{context}/restart", response_model=Context)
async def restart_context(service: Service, session_id: str, context: str) -> Response:
    """Start a context's kernel again. Its variables go, and what it runs ends with an error."""
    return json_response(await service.restart_context(session_id, context))


@router.post("/{context}/cells", response_class=Response, responses=_LINES)
async def run_cell(
    service: Service,
    request: Request,
    session_id: str,
    context: str,
    body: RunCellBody,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run code in a context and stream its events, one JSON object in each line.

    The code runs on if the client disconnects. Send the same request with the same `exec_id` to read its
    events again from the start; the code does not run twice. The idempotency key becomes the exec id if the
    body has none. `POST /v1/sessions/{session_id}/exec` with a `cell` runs code too, and answers as it does
    for commands.
    """
    asked = body.to_domain(context, exec_id=idempotency_key)
    execution = await service.start_exec(session_id, asked)
    return cell_response(execution, request.state.request_id)
