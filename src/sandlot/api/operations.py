"""For those who run it: health, readiness, figures.

``/health`` and ``/ready`` are open, for probes that have no key, and so say little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.answers import answer
from sandlot.api.context import Service
from sandlot.api.figures import RequestFigures
from sandlot.api.problems import PROBLEMS
from sandlot.domain.service import ServiceHealth

router = APIRouter(tags=["operations"], responses=PROBLEMS)


@dataclass(frozen=True, slots=True)
class HealthBody:
    status: Literal["healthy", "degraded"]
    pool_size: int
    active_sessions: int
    worker_id: str
    # Of a fleet: how many are alive; the other figures are their totals.
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class ReadyBody:
    """``ready``: the sessions that there are can be used here. ``creates``: new ones can be made as well."""

    ready: bool
    creates: bool


@router.get("/health", response_model=HealthBody)
async def get_health(service: Service) -> Response:
    """That the process answers; ``degraded`` when it takes no new sessions."""
    health = await service.health()
    status: Literal["healthy", "degraded"] = "healthy" if health.creates else "degraded"
    ready = sum(pool.ready for pool in health.pools.values())
    return answer(HealthBody(status, ready, health.active_sessions, health.worker_id, health.workers))


@router.get(
    "/ready",
    response_model=ReadyBody,
    responses={503: {"model": ReadyBody, "description": "Nothing can be used here now"}},
)
async def get_ready(service: Service) -> Response:
    """For a load balancer: 200 while the sessions that there are can be used, also where no new ones can be
    made. Otherwise an outage of a fleet's directory, which stops creates alone, would take every coordinator
    out at once.
    """
    health = await service.health()
    return answer(ReadyBody(health.ready, health.creates), 200 if health.ready else 503)


@router.get("/v1/health", response_model=ServiceHealth)
async def get_service_health(service: Service) -> Response:
    """Pools with their figures and reasons, and what to look at."""
    return answer(await service.health())


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "For Prometheus"}
    },
)
async def get_metrics(service: Service, request: Request) -> Response:
    figures: RequestFigures = request.app.state.figures
    return Response(figures.exposition(await service.health()), media_type=CONTENT_TYPE_LATEST)
