"""``create_app``: the service's routes behind the edge. The service's life belongs to the caller."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from sandlot.api import (
    attach,
    catalogue,
    e2b_seed_routes,
    execs,
    files,
    operations,
    problems,
    seed_routes,
    sessions,
    threads,
)
from sandlot.api.admission import LOOPBACK_HOSTS, Admission, TokenCheck
from sandlot.api.description import describe
from sandlot.api.edge import DEFAULT_HELD_BYTES, Edge, Gate
from sandlot.api.figures import RequestFigures
from sandlot.api.mounted import MountedApp
from sandlot.api.plain import PlainRoute
from sandlot.api.request_body import DEFAULT_BODY_TIMEOUT_S, DEFAULT_MAX_UPLOAD_BYTES, BodyBounds
from sandlot.api.stream_places import StreamBounds, StreamPlaces
from sandlot.domain.budget import ByteBudget
from sandlot.domain.service import Access, SandboxService
from sandlot.domain.session import Session


def create_app(
    service: SandboxService,
    *,
    api_key: str | None = None,
    tokens: TokenCheck | None = None,
    access: Callable[[Session], Access | None] | None = None,
    gate: Gate | None = None,
    routers: Sequence[APIRouter] = (),
    plain: Sequence[PlainRoute] = (),
    worker_id: str = "",
    allowed_hosts: Collection[str] | None = LOOPBACK_HOSTS,
    max_upload_bytes: int = DEFAULT_MAX_UPLOAD_BYTES,
    body_timeout_s: float = DEFAULT_BODY_TIMEOUT_S,
    mounted: Mapping[str, ASGIApp] | None = None,
    streams: StreamBounds | None = None,
    max_held_bytes: int = DEFAULT_HELD_BYTES,
) -> FastAPI:
    """Without ``api_key`` and ``tokens`` it is open to whoever reaches it, so bind it to loopback alone.

    ``tokens``: bearers' values that are taken instead of the key, which then opens the figures alone.
    ``access``: the way straight to a session's worker, put into each answer about that one session.
    ``gate``: awaited before each request that was admitted; what it raises is the answer. ``routers``: routes
    beside our own; ``plain``: those that are in such a hurry that they are answered before the framework.
    ``worker_id``: who this is, said in every answer. ``allowed_hosts``: the Host names that
    it answers to, without ports; None: any, for a server that is reached by names it cannot know.
    ``mounted``: applications behind the same edge, by the path that each answers. ``streams``: how many event
    streams and WebSockets may be open. ``max_held_bytes``: of results and files on their way to clients.
    """
    app = routed_app(routers)
    # Last: a request is matched against the routes in their order, and ours are in more of a hurry.
    app.router.routes.extend(MountedApp(path, other) for path, other in (mounted or {}).items())
    figures = RequestFigures()
    app.state.service = service
    app.state.access = access
    app.state.figures = figures
    app.state.feeding = set()  # tasks that still give input to execs in the background
    edge: dict[str, Any] = {
        "admission": Admission(api_key, allowed_hosts, tokens),
        "bounds": BodyBounds(max_upload_bytes, body_timeout_s),
        "figures": figures,
        "gate": gate,
        "worker_id": worker_id,
        "held": ByteBudget(max_held_bytes),
        "streams": StreamPlaces(streams or StreamBounds()),
    }
    app.add_middleware(Edge, **edge)
    app.plain = {route.path: Edge(route, **edge) for route in plain}
    return app


class _App(FastAPI):
    """``plain``: what is answered before all of the framework's layers, by its path and for all methods; each
    behind an edge like the framework's own.
    """

    plain: Mapping[str, ASGIApp] = MappingProxyType({})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plain = self.plain.get(scope["path"]) if scope["type"] == "http" else None
        await (plain or super().__call__)(scope, receive, send)


def routed_app(routers: Sequence[APIRouter] = ()) -> _App:
    """All routes and no service: enough to be described."""
    app = _App(
        title="Sandlot",
        version="1",
        description="Self-hosted sandboxes for AI agents: sessions, execs and files.",
        docs_url=None,  # its page would load a stranger's script into our origin
        redoc_url=None,
        redirect_slashes=False,
    )
    problems.install(app)
    rooms = (sessions, execs, attach, files, threads, catalogue, operations, seed_routes, e2b_seed_routes)
    for router in (*routers, *(room.router for room in rooms)):
        for route in router.routes:
            if isinstance(route, APIRoute):
                route.unique_id = route.name
            # Not include_router: it keeps the routers nested and matches every request against each of them
            # twice, which costs more than all the rest of a create.
            app.router.routes.append(route)
    describe(app)
    return app
