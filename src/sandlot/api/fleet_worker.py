"""What a worker does for its fleet alone. Only members' tokens are let in here (``fleet.access``)."""

from __future__ import annotations

from typing import Protocol

from fastapi import APIRouter
from starlette.responses import Response

from sandlot.api.answers import answer
from sandlot.api.problems import PROBLEMS
from sandlot.api.request_body import JsonRoute
from sandlot.domain.service import Opened
from sandlot.domain.session import Assignment, CreateSession
from sandlot.wire.fleet_bodies import AssignedCreateBody, DrainBody
from sandlot.wire.http_bodies import SessionBody


class FleetWorker(Protocol):
    async def create_session(
        self, request: CreateSession, assignment: Assignment | None = None
    ) -> Opened: ...

    def start_draining(self) -> None: ...


def worker_routes(worker: FleetWorker) -> APIRouter:
    router = APIRouter(prefix="/v1/fleet", tags=["fleet"], route_class=JsonRoute, responses=PROBLEMS)

    @router.post("/sessions", status_code=201, response_model=SessionBody)
    async def create_assigned(body: AssignedCreateBody) -> Response:
        opened = await worker.create_session(body.request(), body.assignment())
        return answer(SessionBody.of(opened.session), 201 if opened.created else 200)

    @router.post("/drain", status_code=204)
    async def drain(body: DrainBody) -> Response:
        """No new sessions; those that are here go on."""
        worker.start_draining()
        return Response(status_code=204)

    return router
