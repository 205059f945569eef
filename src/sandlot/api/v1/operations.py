"""For operators: health, readiness, metrics.

``/health`` and ``/ready`` need no key, because probes have none, so they reveal little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.context import Caller, Host, Service
from sandlot.api.edge.error_responses import PROBLEMS
from sandlot.api.responses.json import json_response
from sandlot.api.v1.metrics import RequestMetrics
from sandlot.domain.callers.principal import Scope
from sandlot.domain.service import ServiceHealth

router = APIRouter(tags=["operations"], responses=PROBLEMS)


@dataclass(frozen=True, slots=True)
class HealthBody:
    """The server's state in short. In a fleet, the figures are totals.

    status: ``degraded`` if the server takes no new sessions.
    pool_size: how many warm sandboxes are ready.
    active_sessions: how many sessions there are.
    worker_id: the server's name.
    workers: how many workers of the fleet are alive; null for a single server.
    """

    status: Literal["healthy", "degraded"]
    pool_size: int
    active_sessions: int
    worker_id: str
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class ReadyBody:
    """What the server can do now.

    ready: whether existing sessions can be used.
    creates: whether new sessions can be created.
    """

    ready: bool
    creates: bool


@router.get("/health", response_model=HealthBody)
async def get_health(host: Host) -> Response:
    """Show that the process answers. Needs no API key."""
    health = await host.health()
    status: Literal["healthy", "degraded"] = "healthy" if health.creates else "degraded"
    ready = sum(pool.ready for pool in health.pools.values())
    return json_response(HealthBody(status, ready, health.active_sessions, health.worker_id, health.workers))


@router.get(
    "/ready",
    response_model=ReadyBody,
    responses={503: {"model": ReadyBody, "description": "Existing sessions cannot be used now"}},
)
async def get_ready(host: Host) -> Response:
    """Show whether existing sessions can be used, for load balancers.

    The answer is 200 while they can, even if no new ones can be created. Needs no API key. An outage of a
    fleet's directory, which only stops creates, does not make this fail; otherwise it would take every
    coordinator out at once.
    """
    health = await host.health()
    return json_response(ReadyBody(health.ready, health.creates), 200 if health.ready else 503)


@router.get("/v1/health", response_model=ServiceHealth)
async def get_service_health(service: Service) -> Response:
    """Return the server's state: its pools, its sessions and its problems.

    A key without the scope ``metrics:read`` sees only its own tenant's sessions, and no pools and problems.
    """
    return json_response(await service.health())


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The metrics"}
    },
)
async def get_metrics(host: Host, caller: Caller, request: Request) -> Response:
    """Return the server's metrics for Prometheus. Needs the scope ``metrics:read``."""
    caller.require(Scope.METRICS_READ)
    figures: RequestMetrics = request.app.state.metrics
    return Response(figures.exposition(await host.health()), media_type=CONTENT_TYPE_LATEST)
