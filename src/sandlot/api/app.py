"""``create_app``: a host behind the HTTP edge. The caller opens and closes the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from sandlot.api.classic import e2b_routes as classic_e2b_routes
from sandlot.api.classic import routes as classic_routes
from sandlot.api.console.pages import ConsolePages
from sandlot.api.context import AccessGrant
from sandlot.api.description import describe
from sandlot.api.e2b.app import E2bApi
from sandlot.api.e2b.options import E2bOptions
from sandlot.api.edge import error_responses
from sandlot.api.edge.admission import LOOPBACK_HOSTS, Admission, TokenCheck
from sandlot.api.edge.audit import RequestAudit
from sandlot.api.edge.call_limits import CallLimits
from sandlot.api.edge.key_ring import KeyRing
from sandlot.api.edge.middleware import DEFAULT_HELD_BYTES, EdgeMiddleware, Gate
from sandlot.api.edge.mounts import MountedApp
from sandlot.api.edge.open_requests import OpenRequests
from sandlot.api.edge.raw_routes import RawRoute
from sandlot.api.edge.request_body import DEFAULT_BODY_TIMEOUT_S, DEFAULT_MAX_UPLOAD_BYTES, BodyLimits
from sandlot.api.edge.stream_limits import StreamLimits, StreamSlots
from sandlot.api.fleet import coordinator
from sandlot.api.previews.gateway import PreviewGateway
from sandlot.api.previews.options import PreviewOptions
from sandlot.api.v1 import (
    attach,
    catalogue,
    execs,
    files,
    history,
    network,
    operations,
    ports,
    sessions,
    tenants,
    threads,
)
from sandlot.api.v1 import keys as key_routes
from sandlot.api.v1 import webhooks as webhook_routes
from sandlot.api.v1.artifacts import routes as artifact_routes
from sandlot.api.v1.code import routes as code_routes
from sandlot.api.v1.metrics import RequestMetrics
from sandlot.api.v1.volumes import routes as volume_routes
from sandlot.api.v1.workspaces import session_files, snapshots
from sandlot.domain.callers.limits import no_allowances
from sandlot.domain.callers.rates import Rates, RatesInMemory
from sandlot.domain.capacity.budget import ByteBudget
from sandlot.domain.history.recorder import Recorder
from sandlot.domain.metrics.figures import Figures
from sandlot.domain.service import SandboxHost
from sandlot.domain.webhooks.webhook import Webhooks

if TYPE_CHECKING:
    from sandlot.api.edge.oidc import OidcTokens


def create_app(
    host: SandboxHost,
    *,
    api_key: str | None = None,
    tokens: TokenCheck | None = None,
    keys: KeyRing | None = None,
    oidc: OidcTokens | None = None,
    access: AccessGrant | None = None,
    gate: Gate | None = None,
    fleet: coordinator.Fleet | None = None,
    routers: Sequence[APIRouter] = (),
    raw_routes: Sequence[RawRoute] = (),
    worker_id: str = "",
    allowed_hosts: Collection[str] | None = LOOPBACK_HOSTS,
    max_upload_bytes: int = DEFAULT_MAX_UPLOAD_BYTES,
    body_timeout_s: float = DEFAULT_BODY_TIMEOUT_S,
    mounted: Mapping[str, ASGIApp] | None = None,
    streams: StreamLimits | None = None,
    max_held_bytes: int = DEFAULT_HELD_BYTES,
    rates: Rates | None = None,
    recorder: Recorder | None = None,
    webhooks: Webhooks | None = None,
    policies: Collection[str] = (),
    previews: PreviewOptions | None = None,
    reload: catalogue.Reloader | None = None,
    e2b: E2bOptions | None = None,
    console: bool = False,
    figures: Figures | None = None,
) -> FastAPI:
    """Build the ASGI application that serves ``host``.

    Without ``api_key`` and ``tokens`` anyone who reaches the server can use it, so bind it to
    loopback only.

    ``tokens``: checks bearer tokens, which then replace the key; the key opens only the metrics.
    ``keys``: the keys of users, beside ``api_key``, which is then the administrator's; the caller opens and
    closes the ring. With ``tokens`` they are only watched: requests with a token of an ended key end.
    ``oidc``: admits callers with a token of an issuer; the caller opens and closes it.
    ``access``: returns a caller's direct access to a session's worker; each response about one session
    carries it. ``gate``: awaited before each admitted request; an error that it raises becomes the
    response. ``fleet``: what a coordinator's own routes show. ``routers``: additional routes.
    ``raw_routes``: routes that bypass FastAPI (``README.md``). ``worker_id``: this worker's id, sent
    in every response. ``allowed_hosts``: Host names, without ports, that the server accepts. None
    accepts any name, for a server whose clients use names that it cannot know. ``mounted``: other
    applications behind the same edge, by path. ``streams``: how many event streams and WebSockets may
    be open. ``max_held_bytes``: limit on the bytes of results and files on their way to clients.
    ``rates``: counts calls of callers whose rate is limited; None counts those of this process.
    ``recorder``: records the use of keys and refused requests. ``webhooks``: None if none are sent.
    ``policies``: the names of the command policies that a tenant can be given. ``previews``: None if the
    server shows none. ``reload``: reads the registry again; None if the server cannot. ``e2b``: None if the
    server does not have E2B's API; not together with ``tokens``, because E2B's SDKs have only keys.
    ``console``: whether people find the web console at ``/console``.
    ``figures``: what the host counts, for the metrics.
    """
    app = routed_app(routers if fleet is None else (coordinator.router, *routers))
    # Last, because requests are matched against routes in order and our own must be faster.
    app.router.routes.extend(MountedApp(path, other) for path, other in (mounted or {}).items())
    metrics = RequestMetrics(figures)
    app.state.host = host
    app.state.access = access
    app.state.fleet = fleet
    app.state.metrics = metrics
    app.state.webhooks = webhooks
    app.state.policies = policies
    app.state.previews = previews
    app.state.reload = reload
    app.state.keys = None if tokens is not None else keys
    open_requests = OpenRequests()
    if keys is not None:
        keys.on_end = open_requests.end
    app.state.stdin_writers = set()  # tasks that still write stdin to background execs
    edge: dict[str, Any] = {
        "admission": Admission(
            api_key, allowed_hosts, tokens, [check for check in (keys, oidc) if check is not None]
        ),
        "body_limits": BodyLimits(max_upload_bytes, body_timeout_s),
        "metrics": metrics,
        "gate": gate,
        "worker_id": worker_id,
        "budget": ByteBudget(max_held_bytes),
        "streams": StreamSlots(streams or StreamLimits()),
        "open_requests": open_requests,
        "call_limits": CallLimits(
            no_allowances if keys is None else keys.allowances, rates or RatesInMemory()
        ),
        "audit": None if recorder is None else RequestAudit(recorder),
    }
    app.add_middleware(EdgeMiddleware, **edge)
    if previews is not None:
        app.gateway = PreviewGateway(host, previews, edge["admission"], metrics)
    if e2b is not None:
        assert tokens is None
        app.e2b = E2bApi(host, e2b, api_key=api_key, keys=keys, edge=edge)
    if console:
        app.console = ConsolePages(edge)
    app.raw_routes = {route.path: EdgeMiddleware(route, **edge) for route in raw_routes}
    return app


class _App(FastAPI):
    """FastAPI, with ``raw_routes`` that bypass all of its layers, the ``gateway`` of previews, the console
    and E2B's API.

    A raw route is matched by its exact path and for all methods. Each has an edge of its own, set
    up like the framework's.
    """

    raw_routes: Mapping[str, ASGIApp] = MappingProxyType({})
    gateway: PreviewGateway | None = None
    console: ConsolePages | None = None
    e2b: E2bApi | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.gateway is not None and scope["type"] != "lifespan" and self.gateway.serves(scope):
            await self.gateway(scope, receive, send)
            return
        if self.console is not None and self.console.serves(scope):
            await self.console(scope, receive, send)
            return
        if self.e2b is not None and self.e2b.serves(scope):
            await self.e2b(scope, receive, send)
            return
        route = self.raw_routes.get(scope["path"]) if scope["type"] == "http" else None
        await (route or super().__call__)(scope, receive, send)


def routed_app(routers: Sequence[APIRouter] = ()) -> _App:
    """An app with all routes and no service: enough to generate the OpenAPI description."""
    app = _App(
        title="Sandlot",
        version="1",
        description="Self-hosted sandboxes for AI agents: sessions, execs and files.",
        docs_url=None,  # the docs page would load a third-party script into our origin
        redoc_url=None,
        redirect_slashes=False,
        # The edge has its own spans. FastAPI's would hold what clients sent: bodies, queries, messages.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    error_responses.install(app)
    modules = (
        sessions,
        execs,
        attach,
        code_routes,
        files,
        session_files,
        snapshots,
        artifact_routes,
        volume_routes,
        ports,
        threads,
        network,
        history,
        catalogue,
        key_routes,
        tenants,
        webhook_routes,
        operations,
        classic_routes,
        classic_e2b_routes,
    )
    for router in (*routers, *(module.router for module in modules)):
        for route in router.routes:
            if isinstance(route, APIRoute):
                route.unique_id = route.name
            # Not include_router: README.md says why.
            app.router.routes.append(route)
    describe(app)
    return app
