"""What a worker does for its fleet alone. Only members' tokens are let in here (``fleet.access``)."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.answers import answer
from sandlot.api.problems import PROBLEMS
from sandlot.api.request_body import JsonRoute
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.service import Opened
from sandlot.domain.session import Assignment, CreateSession
from sandlot.wire.fleet_bodies import AssignedCreateBody, DrainBody
from sandlot.wire.http_bodies import SessionBody

_ASSIGNED: Final = msgspec.json.Decoder(AssignedCreateBody)


class FleetWorker(Protocol):
    async def create_session(
        self, request: CreateSession, assignment: Assignment | None = None
    ) -> Opened: ...

    def start_draining(self) -> None: ...


def worker_routes(worker: FleetWorker) -> APIRouter:
    router = APIRouter(prefix="/v1/fleet", tags=["fleet"], route_class=JsonRoute, responses=PROBLEMS)

    async def create_assigned(request: Request) -> Response:
        try:
            body = _ASSIGNED.decode(await request.body())
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"this is not what a coordinator sends: {error}") from error
        opened = await worker.create_session(body.request(), body.assignment())
        return answer(SessionBody.of(opened.session), 201 if opened.created else 200)

    # A plain route: every create of a fleet comes this way, and a validation for strangers would cost half a
    # millisecond. A member of another version may also say more than this one knows.
    router.add_route("/v1/fleet/sessions", create_assigned, methods=["POST"])

    @router.post("/drain", status_code=204)
    async def drain(body: DrainBody) -> Response:
        """No new sessions; those that are here go on."""
        worker.start_draining()
        return Response(status_code=204)

    return router
