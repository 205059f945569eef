"""A session's files as a whole: how much they use, keep them, go back to them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.context import Service, access_to
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import json_response
from sandlot.domain.workspaces.snapshots import Snapshot
from sandlot.domain.workspaces.workspace import WorkspaceStatus
from sandlot.wire.workspaces.snapshot_bodies import RestoreBody, RestoredBody, TakeSnapshotBody

router = APIRouter(
    prefix="/v1/sessions/{session_id}", tags=["workspaces"], route_class=JsonRoute, responses=PROBLEMS
)


@router.get("/workspace", response_model=WorkspaceStatus)
async def get_workspace(service: Service, session_id: str) -> Response:
    """Return how much a session's files use, and what the server's store can do with them."""
    return json_response(await service.get_workspace(session_id))


@router.post("/snapshots", status_code=201, response_model=Snapshot)
async def take_snapshot(
    service: Service,
    session_id: str,
    body: Annotated[TakeSnapshotBody, Body(default_factory=TakeSnapshotBody)],
) -> Response:
    """Keep the session's files as they are now.

    What commands have written that have ended is in the snapshot completely. Sending this twice takes two
    snapshots, unless it ends a step. A server whose store has no snapshots answers 501.
    """
    return json_response(await service.take_snapshot(session_id, body.to_domain()), 201)


@router.post("/restore", response_model=RestoredBody)
async def restore_snapshot(
    service: Service, request: Request, session_id: str, body: RestoreBody
) -> Response:
    """Give the session the files of a snapshot, and a new sandbox.

    Every process of the session ends first, and its generation grows. The answer says what was lost and what
    is kept. The snapshot may be of another session.
    """
    restored = await service.restore_snapshot(session_id, body.to_domain())
    return json_response(RestoredBody.of(restored, access_to(request, restored.session)))
