"""Volumes: create, list and delete files that sessions share."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.context import Service, check_parameters
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import JSON, encode_json, json_response
from sandlot.api.responses.streams import buffered_response
from sandlot.domain.volumes.volume import Volume, VolumePage
from sandlot.wire.volumes.volume_bodies import CreateVolumeBody

SEND_TIMEOUT_S: Final = 60.0

router = APIRouter(prefix="/v1/volumes", tags=["volumes"], route_class=JsonRoute, responses=PROBLEMS)


@router.post("", status_code=201, response_model=Volume)
async def create_volume(service: Service, body: CreateVolumeBody) -> Response:
    """Create an empty volume. Needs the scope `files`, as all calls about volumes do.

    A name that you already use answers 409. A server whose store keeps no volumes answers 501.
    """
    return json_response(await service.create_volume(body.to_domain()), 201)


@router.get("", response_model=VolumePage)
async def list_volumes(
    service: Service,
    request: Request,
    after: Annotated[str | None, Query(description="The `next` value of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries per page.")] = 100,
) -> Response:
    """List your tenant's volumes, oldest first."""
    check_parameters(request, ("after", "limit"))
    page = await service.list_volumes(after=after, limit=limit)
    return buffered_response(encode_json(page), JSON, timeout_s=SEND_TIMEOUT_S)


@router.get("/{volume}", response_model=Volume)
async def get_volume(service: Service, volume: str) -> Response:
    """Return a volume by its name or id: how much it uses, and which session writes to it."""
    return json_response(await service.get_volume(volume))


@router.delete("/{volume}", status_code=204)
async def delete_volume(service: Service, volume: str) -> Response:
    """Delete a volume with its files. While a session has it, this answers 409."""
    await service.delete_volume(volume)
    return Response(status_code=204)
