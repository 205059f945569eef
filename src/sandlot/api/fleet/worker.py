"""A worker's routes for its fleet. Only members' tokens are admitted here (``fleet.access``).

They are spoken between members of one program and are not in the API's description.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final, Protocol

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from sandlot.api.context import Caller
from sandlot.api.edge.raw_routes import RawRoute
from sandlot.api.responses.json import encode_json, json_response
from sandlot.domain.artifacts.artifact import ArtifactPage
from sandlot.domain.callers.principal import Principal, Scope
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.service import Opened
from sandlot.domain.session import Assignment, CreateSession
from sandlot.wire.fleet_bodies import AssignedCreateBody
from sandlot.wire.http_bodies import SessionBody

_DECODER: Final = msgspec.json.Decoder(AssignedCreateBody)


class FleetWorker(Protocol):
    async def create_assigned(
        self, principal: Principal, request: CreateSession, assignment: Assignment
    ) -> Opened: ...

    def set_draining(self, draining: bool) -> None: ...

    async def list_saved_artifacts(
        self,
        principal: Principal,
        session_id: str | None,
        thread: str | None,
        after: str | None,
        limit: int,
        without: Collection[str],
    ) -> ArtifactPage: ...


def worker_routes(worker: FleetWorker) -> APIRouter:
    """All worker routes except ``assigned_create_route``."""
    router = APIRouter(prefix="/v1/fleet", include_in_schema=False)

    @router.post("/drain", status_code=204)
    async def drain(caller: Caller) -> Response:
        """Accept no new sessions. Existing sessions continue."""
        caller.require(Scope.FLEET_OPERATE)
        worker.set_draining(True)
        return Response(status_code=204)

    @router.post("/undrain", status_code=204)
    async def undrain(caller: Caller) -> Response:
        """Accept new sessions again."""
        caller.require(Scope.FLEET_OPERATE)
        worker.set_draining(False)
        return Response(status_code=204)

    @router.get("/artifacts")
    async def list_saved_artifacts(
        caller: Caller,
        session: str | None = None,
        thread: str | None = None,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        without: str = "",
    ) -> Response:
        """List the caller's artifacts in object storage. ``without``: tags of workers to leave out."""
        caller.require(Scope.FILES)
        page = await worker.list_saved_artifacts(
            caller, session, thread, after, limit, set(without.split(","))
        )
        return json_response(page)

    return router


def assigned_create_route(worker: FleetWorker) -> RawRoute:
    """The route that receives every create of a fleet.

    Unknown fields in its body are ignored: a member of another version may send more than this one
    knows.
    """

    async def create_assigned(principal: Principal, content: bytes) -> tuple[int, bytes]:
        principal.require(Scope.SESSIONS_WRITE)
        try:
            body = _DECODER.decode(content)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidRequest(f"Invalid create request from the coordinator: {error}") from error
        opened = await worker.create_assigned(principal, body.request(), body.assignment())
        return 201 if opened.created else 200, encode_json(SessionBody.of(opened.session))

    return RawRoute("/v1/fleet/sessions", create_assigned)
