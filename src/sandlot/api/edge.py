"""The outermost layer, plain ASGI: request id, admission, the body's bounds, figures, and the last resort.

Every answer leaves through here, so every answer has its request id, and an error that nobody foresaw becomes
a problem without a stack.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandlot.api.admission import OPEN_PATHS, Admission, Refusal
from sandlot.api.figures import RequestFigures
from sandlot.api.problems import internal_error, problem_answer
from sandlot.api.request_body import BodyBounds, BoundedBody
from sandlot.api.stream_places import StreamBounds, StreamPlaces, is_stream
from sandlot.domain.budget import Account, ByteBudget, holding
from sandlot.domain.errors import Busy, SandlotError, TooLarge, Unavailable
from sandlot.wire.error_codes import status_of
from sandlot.wire.http_bodies import WORKER_HEADER
from sandlot.wire.request_id import REQUEST_ID_HEADER, served_request

log = structlog.get_logger("sandlot.api")

_REQUEST_ID_NAME: Final = REQUEST_ID_HEADER.lower().encode()
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_.-]{1,64}")

# Awaited before each request that was admitted. What it raises is the answer.
Gate = Callable[[], Awaitable[None]]

# What a server holds of results and files on their way to clients, all of them together.
DEFAULT_HELD_BYTES: Final = 160 * 1024 * 1024


class Edge:
    def __init__(
        self,
        app: ASGIApp,
        admission: Admission,
        bounds: BodyBounds,
        figures: RequestFigures,
        gate: Gate | None = None,
        worker_id: str = "",
        streams: StreamPlaces | None = None,
        held: ByteBudget | None = None,
    ) -> None:
        """``worker_id``: said in every answer, for who must know that it is this one. ``held``: what all
        requests may hold together.
        """
        self._app = app
        self._admission = admission
        self._bounds = bounds
        self._figures = figures
        self._gate = gate
        self._worker_id = worker_id
        self._streams = streams or StreamPlaces(StreamBounds())
        self._held = held or ByteBudget(DEFAULT_HELD_BYTES)
        self._always = [(b"x-content-type-options", b"nosniff")]
        if worker_id:
            self._always.append((WORKER_HEADER.lower().encode(), worker_id.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        served_request.set(request_id)
        method = scope.get("method", "WEBSOCKET")
        refusal = self._admission.refusal(method, scope["path"], scope["headers"])
        with contextlib.ExitStack() as stack:
            account = Account(self._held)
            holding.set(account)
            stack.callback(account.close)
            if refusal is None and is_stream(scope):
                try:
                    stack.enter_context(self._streams.place(scope))
                except Busy as error:
                    refusal = Refusal(status_of(error), error)
            await self._serve(scope, receive, send, refusal)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, refusal: Refusal | None) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send, refusal)
            return
        if self._worker_id:
            send = _signed(send, self._worker_id)
        refusal = refusal or await self._kept_out(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await _refuse_websocket(scope, receive, send, refusal)

    async def _kept_out(self, scope: Scope) -> Refusal | None:
        if self._gate is None or scope["path"] in OPEN_PATHS:
            return None
        try:
            await self._gate()
        except SandlotError as error:
            return Refusal(status_of(error), error)
        return None

    async def _http(self, scope: Scope, receive: Receive, send: Send, refusal: Refusal | None) -> None:
        request_id = scope["state"]["request_id"]
        limit = self._bounds.limit(scope["method"], scope["path"])
        body = BoundedBody(receive, limit, self._bounds.timeout_s)
        began = time.perf_counter()
        reply = _Reply(send, [(_REQUEST_ID_NAME, request_id.encode()), *self._always], body)
        try:
            if refusal is None:
                refusal = _announced_too_large(scope, body) or await self._kept_out(scope)
            if refusal is None:
                await self._app(scope, body.receive, reply.send)
            else:
                refused = problem_answer(refusal.error, request_id, status=refusal.status)
                await refused(scope, receive, reply.send)
        except ClientDisconnect:
            log.debug("client_gone", request_id=request_id)
        except asyncio.CancelledError:
            # Only a server that ends cancels a request. Without an answer it would be told as a failure.
            if reply.status:
                raise
            await problem_answer(_cut_off(), request_id)(scope, receive, reply.send)
        except Exception as error:  # noqa: BLE001  the last resort: in full to the log, by its id to the client
            _log_failure(scope, request_id, error)
            if not reply.status:
                await problem_answer(internal_error(), request_id)(scope, receive, reply.send)
        finally:
            seconds = (reply.began or time.perf_counter()) - began
            self._figures.observe(scope["method"], route_of(scope), reply.status, seconds)


def _cut_off() -> Unavailable:
    return Unavailable(
        "the server is stopping and did not wait for this call; a command goes on, ask again by its id",
        may_have_executed=True,
        retry_after_s=1.0,
    )


def _log_failure(scope: Scope, request_id: str, error: Exception) -> None:
    """As text: a renderer of tracebacks might print variables, and keys with them."""
    stack = "".join(traceback.format_exception(error))
    log.error("request_failed", request_id=request_id, method=scope["method"], traceback=stack)


def _signed(send: Send, worker_id: str) -> Send:
    async def signed(message: Message) -> None:
        if message["type"] in ("websocket.accept", "websocket.http.response.start"):
            MutableHeaders(scope=message)[WORKER_HEADER] = worker_id
        await send(message)

    return signed


class _Reply:
    """Puts ``headers`` on the answer. Who is refused while still sending sees it, and is then cut off."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]], body: BoundedBody) -> None:
        self._send = send
        self._headers = headers
        self._body = body
        self._closes = False
        self.status = 0
        self.began = 0.0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.began = time.perf_counter()
            ours = {name for name, _ in self._headers}
            message["headers"] = [
                *(header for header in message.get("headers", ()) if header[0] not in ours),
                *self._headers,
            ]
            if self.status >= 400:
                await self._body.settle()
                if not self._body.complete:
                    MutableHeaders(scope=message)["Connection"] = "close"
                    self._closes = True
        elif self._closes and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._body.drain()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)


def route_of(scope: Scope) -> str:
    """The route's template: what clients put into paths must not become names of figures."""
    return getattr(scope.get("route"), "path", "unmatched")


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return "req_" + secrets.token_hex(12)


def _announced_too_large(scope: Scope, body: BoundedBody) -> Refusal | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            try:
                body.check_announced(int(value[:20]))
            except TooLarge as error:
                return Refusal(413, error)
    return None


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
    """As an HTTP answer where the server can give one; closing before accepting is the bare 403."""
    if "websocket.http.response" in scope.get("extensions", {}):
        refused = problem_answer(refusal.error, scope["state"]["request_id"], status=refusal.status)
        await refused(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008})
