"""The outermost ASGI layer: request id, admission, body limits, metrics, unexpected errors.

Every response passes through here, so every response has a request id, and an unexpected error
becomes a problem response without a stack trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandlot.api.edge.admission import OPEN_PATHS, SUBPROTOCOL, Refusal
from sandlot.api.edge.audit import RequestAudit
from sandlot.api.edge.call_limits import CallLimits, Headers
from sandlot.api.edge.error_responses import answered_errors, internal_error, problem_response
from sandlot.api.edge.open_requests import OpenRequests
from sandlot.api.edge.request_body import BodyLimits, BoundedBody
from sandlot.api.edge.stream_limits import StreamLimits, StreamSlots, is_stream
from sandlot.api.v1.metrics import RequestMetrics
from sandlot.domain.callers.limits import no_allowances
from sandlot.domain.callers.principal import Principal
from sandlot.domain.callers.rates import RatesInMemory
from sandlot.domain.capacity.budget import Account, ByteBudget, current_account
from sandlot.domain.errors import Busy, SandlotError, TooLarge, Unauthorized, Unavailable
from sandlot.wire.error_codes import status_of
from sandlot.wire.http_bodies import WORKER_HEADER
from sandlot.wire.tracing import traces
from sandlot.wire.tracing.request_id import REQUEST_ID_HEADER, current_request_id

log = structlog.get_logger("sandlot.api")

_REQUEST_ID_NAME: Final = REQUEST_ID_HEADER.lower().encode()
_TRACE_HEADERS: Final = frozenset({traces.TRACEPARENT.encode(), traces.TRACESTATE.encode()})
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_.-]{1,64}")

# Awaited before each admitted request. An error that it raises becomes the response.
Gate = Callable[[], Awaitable[None]]

# Seconds for telling a WebSocket why it is closed.
CLOSE_WITHIN_S: Final = 2.0
# Limit on the bytes of results and files that a server holds on their way to all clients together.
DEFAULT_HELD_BYTES: Final = 160 * 1024 * 1024


class Admitting(Protocol):
    """Decides who makes a request."""

    def admit_request(self, scope: Scope) -> Principal | Refusal: ...

    async def may_admit_later(self, refusal: Refusal) -> bool: ...


class ErrorForm(Protocol):
    """Writes an error as a response. ``status`` replaces the error's own."""

    def __call__(
        self, error: SandlotError, request_id: str = "", *, status: int | None = None
    ) -> Response: ...


class EdgeMiddleware:
    """Wraps an ASGI app with admission, limits, request ids and metrics."""

    def __init__(
        self,
        app: ASGIApp,
        admission: Admitting,
        body_limits: BodyLimits,
        metrics: RequestMetrics,
        gate: Gate | None = None,
        worker_id: str = "",
        streams: StreamSlots | None = None,
        budget: ByteBudget | None = None,
        open_requests: OpenRequests | None = None,
        call_limits: CallLimits | None = None,
        audit: RequestAudit | None = None,
        error_form: ErrorForm = problem_response,
    ) -> None:
        """``worker_id`` is sent in every response, so that clients can verify they reached this
        worker. ``budget`` limits the bytes that all requests together may hold. ``audit`` records who
        called and who was refused. ``error_form``: how clients of these routes read errors.
        """
        self._app = app
        self._admission = admission
        self._body_limits = body_limits
        self._metrics = metrics
        self._gate = gate
        self._worker_id = worker_id
        self._streams = streams or StreamSlots(StreamLimits())
        self._budget = budget or ByteBudget(DEFAULT_HELD_BYTES)
        self._open_requests = open_requests or OpenRequests()
        self._call_limits = call_limits or CallLimits(no_allowances, RatesInMemory())
        self._audit = audit
        self._error_form = error_form
        self._fixed_headers = [(b"x-content-type-options", b"nosniff")]
        if worker_id:
            self._fixed_headers.append((WORKER_HEADER.lower().encode(), worker_id.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        current_request_id.set(request_id)
        traces.set_received(_trace_context(scope))
        method = scope.get("method", "WEBSOCKET")
        with traces.span(method, "SERVER", sandlot_request_id=request_id) as span:
            scope["state"]["span"] = span
            await self._admit(scope, receive, send)
            if span is not None:
                span.update_name(f"{method} {route_of(scope)}")

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        admitted = self._admission.admit_request(scope)
        if isinstance(admitted, Refusal) and await self._admission.may_admit_later(admitted):
            admitted = self._admission.admit_request(scope)
        refusal = None
        with contextlib.ExitStack() as stack:
            if isinstance(admitted, Refusal):
                refusal = admitted
            else:
                scope["state"]["principal"] = admitted
                stack.enter_context(self._open_requests.registered(admitted))
            account = Account(self._budget)
            current_account.set(account)
            stack.callback(account.close)
            if refusal is None and is_stream(scope):
                try:
                    stack.enter_context(self._streams.slot(scope))
                except Busy as error:
                    refusal = Refusal(status_of(error), error)
            await self._serve(scope, receive, send, refusal)

    async def _too_many_calls(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Count the call against its caller's rate. ``headers`` then say what is left of it."""
        left, error = await self._call_limits.count(scope["state"]["principal"])
        headers += left
        return None if error is None else Refusal(status_of(error), error)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, refusal: Refusal | None) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send, refusal)
            return
        if self._worker_id:
            send = _with_worker_header(send, self._worker_id)
        if SUBPROTOCOL in scope.get("subprotocols", ()):
            send = _with_subprotocol(send)
        try:
            refusal = refusal or await self._too_many_calls(scope, []) or await self._gate_refusal(scope)
            if refusal is None:
                await self._app(scope, receive, send)
            else:
                if self._audit is not None:
                    self._audit.observe(scope, refusal.status, "websocket")
                await _refuse_websocket(scope, receive, send, refusal)
        except asyncio.CancelledError:
            if not self._ended_with_key(scope):
                raise
            # It may be closed already. A client that does not read must not hold up its end.
            with contextlib.suppress(RuntimeError, TimeoutError):
                async with asyncio.timeout(CLOSE_WITHIN_S):
                    await send({"type": "websocket.close", "code": 1008, "reason": _key_ended().message})

    def _ended_with_key(self, scope: Scope) -> bool:
        """Whether this request was cancelled because its key ended. The cancellation is then over."""
        principal = scope["state"].get("principal")
        return principal is not None and self._open_requests.take_end(principal)

    async def _gate_refusal(self, scope: Scope) -> Refusal | None:
        if self._gate is None or scope["path"] in OPEN_PATHS:
            return None
        try:
            await self._gate()
        except SandlotError as error:
            return Refusal(status_of(error), error)
        return None

    async def _http(self, scope: Scope, receive: Receive, send: Send, refusal: Refusal | None) -> None:
        request_id = scope["state"]["request_id"]
        limit = self._body_limits.limit(scope["method"], scope["path"])
        body = BoundedBody(receive, limit, self._body_limits.time(scope["method"], scope["path"]))
        began = time.perf_counter()
        errors: list[SandlotError] = []
        answered_errors.set(errors)
        headers = [(_REQUEST_ID_NAME, request_id.encode()), *self._fixed_headers]
        sender = _ResponseSender(send, headers, body)
        try:
            if refusal is None:
                refusal = (
                    await self._too_many_calls(scope, headers)
                    or _declared_too_large(scope, body)
                    or await self._gate_refusal(scope)
                )
            if refusal is None:
                await self._app(scope, body.receive, sender.send)
            else:
                refused = self._error_form(refusal.error, request_id, status=refusal.status)
                await refused(scope, receive, sender.send)
        except ClientDisconnect:
            log.debug("client_gone", request_id=request_id)
        except asyncio.CancelledError:
            # A request is cancelled when its key ends and when the server shuts down. Without a response
            # the cancellation would count as a failure.
            ended = self._ended_with_key(scope)
            if not sender.status:
                error = _key_ended() if ended else _shutting_down()
                await self._error_form(error, request_id)(scope, receive, sender.send)
            elif not ended:
                raise
            # Otherwise return without the rest: the server closes the connection, and the client sees
            # that the response is not complete.
        except Exception as error:  # noqa: BLE001  last resort: log it in full, send its id
            _log_unexpected_error(scope, request_id, error)
            if not sender.status:
                await self._error_form(internal_error(), request_id)(scope, receive, sender.send)
        finally:
            seconds = (sender.began or time.perf_counter()) - began
            if (span := scope["state"].get("span")) is not None:
                span.set_attribute("http.response.status_code", sender.status)
            answered = errors[0] if errors else None
            self._metrics.observe(scope["method"], route_of(scope), sender.status, seconds, answered)
            if self._audit is not None:
                self._audit.observe(scope, sender.status, f"{scope['method'][:16]} {route_of(scope)}")


def _shutting_down() -> Unavailable:
    return Unavailable(
        "The server is shutting down and stopped waiting for this call. A command that has started "
        "keeps running: fetch its result by its exec id.",
        may_have_executed=True,
        retry_after_s=1.0,
    )


def _key_ended() -> Unauthorized:
    return Unauthorized(
        "This API key was revoked or has expired. A command that has started keeps running.",
        may_have_executed=True,
    )


def _log_unexpected_error(scope: Scope, request_id: str, error: Exception) -> None:
    """Log the traceback as text: a traceback renderer might print variables, and keys with them."""
    stack = "".join(traceback.format_exception(error))
    log.error("request failed", request_id=request_id, method=scope["method"], traceback=stack)


def _with_worker_header(send: Send, worker_id: str) -> Send:
    async def send_with_header(message: Message) -> None:
        if message["type"] in ("websocket.accept", "websocket.http.response.start"):
            MutableHeaders(scope=message)[WORKER_HEADER] = worker_id
        await send(message)

    return send_with_header


def _with_subprotocol(send: Send) -> Send:
    """A browser closes a WebSocket for which none of the names that it offered was accepted."""

    async def send_with_name(message: Message) -> None:
        if message["type"] == "websocket.accept":
            message = {**message, "subprotocol": SUBPROTOCOL}
        await send(message)

    return send_with_name


class _ResponseSender:
    """Adds ``headers`` to the response.

    A client that is refused while it still sends its body gets the response, and is then
    disconnected.
    """

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]], body: BoundedBody) -> None:
        self._send = send
        self._headers = headers
        self._body = body
        self._closing = False
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
                await self._body.discard_buffered()
                if not self._body.complete:
                    MutableHeaders(scope=message)["Connection"] = "close"
                    self._closing = True
        elif self._closing and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._body.drain()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)


def route_of(scope: Scope) -> str:
    """The route's path template. Real paths come from clients and must not become metric labels."""
    return getattr(scope.get("route"), "path", "unmatched")


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return "req_" + secrets.token_hex(12)


def _trace_context(scope: Scope) -> traces.TraceContext | None:
    found = {
        str(name, "latin-1"): str(value, "latin-1")
        for name, value in scope["headers"]
        if name in _TRACE_HEADERS
    }
    return traces.read(found) if found else None


def _declared_too_large(scope: Scope, body: BoundedBody) -> Refusal | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            try:
                body.check_content_length(int(value[:20]))
            except TooLarge as error:
                return Refusal(413, error)
    return None


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
    """Refuse by an HTTP response where the server supports one, else by closing: a bare 403."""
    if "websocket.http.response" in scope.get("extensions", {}):
        refused = problem_response(refusal.error, scope["state"]["request_id"], status=refusal.status)
        await refused(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008})
