"""A coordinator's routes for operators of the fleet."""

from __future__ import annotations

from typing import Annotated, Protocol

from fastapi import APIRouter, Query
from starlette.responses import Response

from sandlot.api.edge.problems import PROBLEMS
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import json_response
from sandlot.wire.fleet_bodies import DrainBody, FleetBody, PlacedSessionsBody


class Fleet(Protocol):
    async def fleet(self) -> FleetBody: ...

    async def placed_sessions(self, *, after: str | None, limit: int) -> PlacedSessionsBody: ...

    async def set_draining(self, worker_id: str, draining: bool) -> None: ...


def coordinator_routes(fleet: Fleet) -> APIRouter:
    router = APIRouter(prefix="/v1/fleet", tags=["fleet"], route_class=JsonRoute, responses=PROBLEMS)

    @router.get("", response_model=FleetBody)
    async def get_fleet() -> Response:
        """Its workers, and how much they hold."""
        return json_response(await fleet.fleet())

    @router.get("/sessions", response_model=PlacedSessionsBody)
    async def list_placed(
        after: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> Response:
        """Sessions with their workers, oldest first."""
        return json_response(await fleet.placed_sessions(after=after, limit=limit))

    @router.post("/workers/{worker_id}/drain", status_code=204)
    async def drain(worker_id: str, body: DrainBody | None = None) -> Response:
        """That worker takes no new sessions; those that it has go on."""
        await fleet.set_draining(worker_id, True)
        return Response(status_code=204)

    @router.post("/workers/{worker_id}/undrain", status_code=204)
    async def undrain(worker_id: str, body: DrainBody | None = None) -> Response:
        """That worker takes new sessions again."""
        await fleet.set_draining(worker_id, False)
        return Response(status_code=204)

    return router
