"""``E2bApi``: E2B's API beside ours, on one port, for E2B's own SDKs.

A request that names a sandbox in a header is about the inside of that sandbox, and carries the sandbox's
token (``envd.py``). So does a signed link to a file. All other paths are those of the REST API, which wants
an API key (``control/``). Both stand behind an edge that is set up like that of our own routes, so admission,
rates, limits, audit and metrics are the same; only errors are written in E2B's form.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandlot.api.context import principal_of
from sandlot.api.e2b.admission import FILES_PATH, SANDBOX_HEADER, SandboxAdmission
from sandlot.api.e2b.control import builds, templates
from sandlot.api.e2b.control.builds import UploadAdmission, UploadLimits, receive_upload
from sandlot.api.e2b.control.calls import ControlCall
from sandlot.api.e2b.control.routes import ROUTES
from sandlot.api.e2b.envd import RPC_PREFIXES, Envd, EnvdLimits
from sandlot.api.e2b.errors import error_response
from sandlot.api.e2b.options import E2bOptions, TokenHolders
from sandlot.api.e2b.signed_links import LinkedSessions
from sandlot.api.edge.admission import Admission
from sandlot.api.edge.error_responses import http_error
from sandlot.api.edge.key_ring import KeyRing
from sandlot.api.edge.middleware import EdgeMiddleware
from sandlot.api.edge.request_body import BodyLimits
from sandlot.domain.callers.principal import DEFAULT_TENANT
from sandlot.domain.e2b.tokens import SandboxTokens
from sandlot.domain.errors import NotFound, SandlotError, Unsupported
from sandlot.domain.service import SandboxHost

# What begins so belongs to E2B's API.
_CONTROL_PREFIXES: Final = (
    "/sandboxes",
    "/v2/sandboxes",
    "/snapshots",
    "/templates",
    "/v2/templates",
    "/v3/",
    "/volumes",
    "/secrets",
)


class E2bApi:
    """``edge``: how ``EdgeMiddleware`` is set up for our own routes."""

    def __init__(
        self,
        host: SandboxHost,
        options: E2bOptions,
        *,
        api_key: str | None,
        keys: KeyRing | None,
        edge: Mapping[str, Any],
    ) -> None:
        admission: Admission = edge["admission"]
        body_limits: BodyLimits = edge["body_limits"]
        tokens = SandboxTokens(options.secret, api_key)
        holders = TokenHolders(tokens, (lambda _: None) if keys is None else keys.principal_of)
        links = LinkedSessions(
            host, tokens, lambda: {(DEFAULT_TENANT, ""), *(() if keys is None else keys.active_keys())}
        )
        limits = EnvdLimits(body_limits.max_upload_bytes, body_limits.timeout_s)
        self._control = EdgeMiddleware(
            _Control(host, holders, links, options), **{**edge, "error_form": error_response}
        )
        self._uploads = EdgeMiddleware(
            _Uploads(options),
            **{
                **edge,
                "admission": UploadAdmission(admission, holders),
                "body_limits": UploadLimits(body_limits.max_upload_bytes, body_limits.timeout_s),
                "error_form": error_response,
            },
        )
        self._envd = EdgeMiddleware(
            Envd(host, limits),
            **{
                **edge,
                "admission": SandboxAdmission(admission, holders, links),
                "body_limits": limits,
                "error_form": error_response,
            },
        )

    def serves(self, scope: Scope) -> bool:
        if scope["type"] != "http":
            return False
        path: str = scope["path"]
        return _is_inside(scope, path) or path.startswith(_CONTROL_PREFIXES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._part_for(scope)(scope, receive, send)

    def _part_for(self, scope: Scope) -> EdgeMiddleware:
        if _is_inside(scope, scope["path"]):
            return self._envd
        if scope["method"] == "PUT" and builds.UPLOAD_PATH.fullmatch(scope["path"]):
            return self._uploads
        return self._control


def _is_inside(scope: Scope, path: str) -> bool:
    return (
        path == FILES_PATH
        or path.startswith(RPC_PREFIXES)
        or any(name == SANDBOX_HEADER for name, _ in scope["headers"])
    )


class _Control:
    def __init__(
        self, host: SandboxHost, holders: TokenHolders, links: LinkedSessions, options: E2bOptions
    ) -> None:
        self._host = host
        self._holders = holders
        self._links = links
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await _answered(self._answer(Request(scope, receive))))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path: str = request.scope["path"]
        for route in ROUTES:
            parameters = route.matches(path)
            if parameters is not None and route.method == request.method:
                request.scope["route"] = route
                request.scope["path_params"] = parameters
                caller = principal_of(request)
                service = self._host.acting_for(caller)
                return await route.handler(
                    ControlCall(
                        request,
                        service,
                        caller,
                        self._holders,
                        self._links,
                        self._options.domain,
                        self._options.builds,
                    )
                )
        if path.startswith(templates.PREFIXES):
            raise builds.not_built_here()
        if path.startswith("/secrets"):
            raise Unsupported(
                "Secrets are the operator's here: `sandlot secrets` and gateways add them to requests "
                "(docs/howto/secrets.md)."
            )
        raise NotFound(
            f"{request.method[:16]} {path[:200]!r} is not a part of E2B's API that Sandlot has. "
            "docs/howto/e2b-sdk.md lists what it has."
        )


class _Uploads:
    """The files of builds."""

    path = "/templates/{template_id}/files/{hash}"

    def __init__(self, options: E2bOptions) -> None:
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self  # its label in metrics
        await (await _answered(self._answer(Request(scope, receive))))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if self._options.builds is None:
            raise builds.not_built_here()
        return await receive_upload(request, self._options.builds)


async def _answered(answer: Awaitable[Response]) -> Response:
    """The answer, or its error in E2B's form."""
    try:
        return await answer
    except SandlotError as error:
        return error_response(error)
    except HTTPException as error:
        return error_response(http_error(error.status_code, error.detail), status=error.status_code)
