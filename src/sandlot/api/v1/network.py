"""What a session's sandbox may connect to: see it, and change it while the session lives."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from sandlot.api.context import Service
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.edge.request_body import JsonRoute
from sandlot.api.responses.json import json_response
from sandlot.wire.network_bodies import NetworkBody, NetworkChangeBody

router = APIRouter(
    prefix="/v1/sessions/{session_id}/network", tags=["network"], route_class=JsonRoute, responses=PROBLEMS
)


@router.get("", response_model=NetworkBody)
async def get_network(service: Service, session_id: str) -> Response:
    """Return what the session's sandbox may connect to, and what it has done so far."""
    return json_response(NetworkBody.of(await service.get_network(session_id)))


@router.patch("", response_model=NetworkBody)
async def change_network(service: Service, session_id: str, body: NetworkChangeBody) -> Response:
    """Change what the session's sandbox may connect to. Needs the scope ``network``.

    Open connections that are no longer allowed end at once.
    """
    return json_response(NetworkBody.of(await service.change_network(session_id, body.to_domain())))
