"""A coordinator's routes for operators of the fleet."""

from __future__ import annotations

from typing import Annotated, Protocol

from fastapi import APIRouter, Depends, Query
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from sandlot.api.context import Caller, check_parameters
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.responses.json import json_response
from sandlot.domain.callers.principal import Scope, check_tenant
from sandlot.wire.fleet_bodies import FleetBody, PlacedSessionsBody


class Fleet(Protocol):
    async def fleet(self) -> FleetBody: ...

    async def placed_sessions(self, tenant: str, *, after: str | None, limit: int) -> PlacedSessionsBody: ...

    async def set_draining(self, worker_id: str, draining: bool) -> None: ...


async def _fleet(connection: HTTPConnection) -> Fleet:
    fleet: Fleet = connection.app.state.fleet
    return fleet


FleetBehind = Annotated[Fleet, Depends(_fleet)]

# Earlier clients send an empty object to drain and undrain, which take no body. It is not read.
router = APIRouter(prefix="/v1/fleet", tags=["fleet"], responses=PROBLEMS)


@router.get("", response_model=FleetBody)
async def get_fleet(fleet: FleetBehind, caller: Caller) -> Response:
    """Return the fleet's workers and their capacity."""
    caller.require(Scope.FLEET_OPERATE)
    return json_response(await fleet.fleet())


@router.get("/sessions", response_model=PlacedSessionsBody)
async def list_placed_sessions(
    fleet: FleetBehind,
    caller: Caller,
    request: Request,
    tenant: Annotated[str | None, Query(description="Whose sessions; default: the caller's own.")] = None,
    after: Annotated[str | None, Query(description="`next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most entries in one page.")] = 100,
) -> Response:
    """List a tenant's sessions with their workers, oldest first."""
    check_parameters(request, ("tenant", "after", "limit"))
    caller.require(Scope.FLEET_OPERATE)
    owner = caller.tenant if tenant is None else check_tenant(tenant)
    return json_response(await fleet.placed_sessions(owner, after=after, limit=limit))


@router.post("/workers/{worker_id}/drain", status_code=204)
async def drain_worker(fleet: FleetBehind, caller: Caller, worker_id: str) -> Response:
    """Tell a worker to accept no new sessions. Existing sessions continue."""
    caller.require(Scope.FLEET_OPERATE)
    await fleet.set_draining(worker_id, True)
    return Response(status_code=204)


@router.post("/workers/{worker_id}/undrain", status_code=204)
async def undrain_worker(fleet: FleetBehind, caller: Caller, worker_id: str) -> Response:
    """Tell a draining worker to accept new sessions again."""
    caller.require(Scope.FLEET_OPERATE)
    await fleet.set_draining(worker_id, False)
    return Response(status_code=204)
