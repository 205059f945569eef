"""What happens inside a sandbox: E2B's ``envd``, as the SDKs reach it with a sandbox's token."""

from __future__ import annotations

from typing import Final

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandlot.api.context import principal_of
from sandlot.api.e2b.admission import CODE_PORT, ENVD_PORT, FILES_PATH, PORT_HEADER, SESSION, header
from sandlot.api.e2b.calls import Handler, SandboxCall, gone, usable_session
from sandlot.api.e2b.code import service as code
from sandlot.api.e2b.connect_rpc import STREAM, UNARY, end_of_stream
from sandlot.api.e2b.errors import (
    PortClosed,
    SandboxGone,
    connect_error,
    connect_error_response,
    error_response,
)
from sandlot.api.e2b.files.routes import read_file, write_files
from sandlot.api.e2b.filesystem import service as filesystem
from sandlot.api.e2b.filesystem.watching import Watchers
from sandlot.api.e2b.process import service as process
from sandlot.api.edge.error_responses import http_error
from sandlot.api.edge.request_body import BodyLimits
from sandlot.domain.e2b.names import sandbox_id_of
from sandlot.domain.errors import (
    InvalidRequest,
    NotFound,
    SandboxLost,
    SandlotError,
    SessionEnded,
    Unsupported,
)
from sandlot.domain.service import SandboxHost

log = structlog.get_logger("sandlot.api")

HEALTH_PATH: Final = "/health"
RPC_PREFIXES: Final = ("/process.Process/", "/filesystem.Filesystem/")
STREAM_INPUT: Final = "/process.Process/StreamInput"
# A client that streams input may be silent for as long as whoever types.
INPUT_WAITS_S: Final = 3600.0


class EnvdLimits(BodyLimits):
    """Of requests to a sandbox: files and input may be long, and input may take its time."""

    def limit(self, method: str, path: str) -> int:
        if method == "POST" and path in (FILES_PATH, STREAM_INPUT):
            return self.max_upload_bytes
        return super().limit(method, path)

    def time(self, method: str, path: str) -> float:
        return INPUT_WAITS_S if path == STREAM_INPUT else super().time(method, path)


class _Labelled:
    """Names a path in metrics. Paths that clients make up must not become labels."""

    def __init__(self, path: str) -> None:
        self.path = path


class Envd:
    def __init__(self, host: SandboxHost, limits: BodyLimits) -> None:
        self._host = host
        self._limits = limits
        self._methods: dict[str, Handler] = {
            **process.METHODS,
            **filesystem.METHODS,
            **Watchers().methods(),
        }
        self._labels = {
            path: _Labelled(path) for path in (*self._methods, HEALTH_PATH, FILES_PATH, *code.PATHS)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path = scope["path"]
        label = code.label_of(path) or path
        if label in self._labels:
            scope["route"] = self._labels[label]
        answer = await self._answer(request, path)
        await answer(scope, receive, send)

    async def _answer(self, request: Request, path: str) -> Response:
        sandbox_id = sandbox_id_of(request.scope["state"][SESSION])
        try:
            return await self._handled(request, path)
        except (SessionEnded, SandboxLost) as error:
            return _error(path, request, gone(sandbox_id, error))
        except SandlotError as error:
            return _error(path, request, error)
        except HTTPException as error:
            return _error(path, request, http_error(error.status_code, error.detail))

    async def _handled(self, request: Request, path: str) -> Response:
        handler = self._methods.get(path)
        if handler is not None:
            _check_connect(request)
        elif path.startswith(RPC_PREFIXES):
            raise Unsupported(f"{path[1:200]!r} is not a method of this server.")
        session_id = request.scope["state"][SESSION]
        service = self._host.acting_for(principal_of(request))
        call = SandboxCall(request, service, await usable_session(service, session_id))
        port = _port_of(request)
        if port == CODE_PORT:
            return await code.answer(call)
        if port != ENVD_PORT:
            raise PortClosed(call.sandbox_id, port)
        if handler is not None:
            return await handler(call)
        if path == HEALTH_PATH and request.method == "GET":
            return Response(status_code=204)
        if path == FILES_PATH and request.method == "GET":
            return await read_file(call)
        if path == FILES_PATH and request.method == "POST":
            return await write_files(call, self._limits.max_upload_bytes)
        raise NotFound(f"There is no {request.method[:16]} {path[:200]!r} in a sandbox.")


def _port_of(request: Request) -> int:
    text = header(request.scope, PORT_HEADER)
    if text is None:
        return ENVD_PORT
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65_535):
        raise InvalidRequest("E2b-Sandbox-Port must be a port's number.")
    return int(text)


def _check_connect(request: Request) -> None:
    if request.method != "POST":
        raise InvalidRequest("Methods of Connect services are called with POST.")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (UNARY, STREAM):
        raise Unsupported(f"Content-Type {kind[:80]!r} is not supported. Use Connect with JSON.")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", ""):
        raise Unsupported("Compressed requests are not supported. Send them as they are.")


def _error(path: str, request: Request, error: SandlotError) -> Response:
    if not path.startswith(RPC_PREFIXES):
        return error_response(error)
    if isinstance(error, SandboxGone | PortClosed):
        return error_response(error)
    if request.headers.get("content-type", "").startswith(STREAM):
        return Response(end_of_stream(connect_error(error)), media_type=STREAM)
    return connect_error_response(error)
