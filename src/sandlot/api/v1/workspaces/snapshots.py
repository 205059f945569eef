"""Snapshots by their ids: list, compare, delete. They outlive their sessions."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.context import Service, check_parameters
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import JSON, encode_json
from sandlot.api.responses.streams import buffered_response
from sandlot.domain.workspaces.snapshots import Difference, SnapshotPage

SEND_TIMEOUT_S: Final = 60.0

router = APIRouter(prefix="/v1/snapshots", tags=["workspaces"], route_class=JsonRoute, responses=PROBLEMS)


@router.get("", response_model=SnapshotPage)
async def list_snapshots(
    service: Service,
    request: Request,
    session: Annotated[str | None, Query(description="Return only this session's snapshots.")] = None,
    after: Annotated[str | None, Query(description="The `next` value of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries per page.")] = 100,
) -> Response:
    """List your tenant's snapshots, oldest first."""
    check_parameters(request, ("session", "after", "limit"))
    page = await service.list_snapshots(session_id=session, after=after, limit=limit)
    return buffered_response(encode_json(page), JSON, timeout_s=SEND_TIMEOUT_S)


@router.delete("/{snapshot_id}", status_code=204)
async def delete_snapshot(service: Service, snapshot_id: str) -> Response:
    """Delete a snapshot. Sessions that began with its files keep them."""
    await service.delete_snapshot(snapshot_id)
    return Response(status_code=204)


@router.get("/{snapshot_id}/diff", response_model=Difference)
async def compare_snapshot(
    service: Service,
    request: Request,
    snapshot_id: str,
    to: Annotated[
        str | None,
        Query(description="The id of a later snapshot. Without it, the files of the session now."),
    ] = None,
) -> Response:
    """Return which files were added, changed and removed since a snapshot. Needs the scope `files`."""
    check_parameters(request, ("to",))
    difference = await service.compare_snapshot(snapshot_id, to=to)
    return buffered_response(encode_json(difference), JSON, timeout_s=SEND_TIMEOUT_S)
