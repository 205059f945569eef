"""``PreviewGateway``: the ASGI application for all previews of a server.

It stands beside the API and not behind it: visitors have no key, and nothing of the API is served under a
preview's address. A link says which session and port it opens; the session's worker says whether that is
still exposed, at each connection.
"""

from __future__ import annotations

import asyncio
import time
import traceback

import structlog
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from sandlot.api.edge.admission import Admission
from sandlot.api.edge.request_body import DEFAULT_BODY_TIMEOUT_S, BoundedBody
from sandlot.api.previews.headers import preflight
from sandlot.api.previews.http import HttpVisit
from sandlot.api.previews.options import PreviewOptions
from sandlot.api.previews.pages import Refused, nothing_here, refusal_of
from sandlot.api.previews.turns import Turns
from sandlot.api.previews.visits import Redirect, Visit, is_for_previews, read_visit
from sandlot.api.previews.websocket import WebSocketVisit
from sandlot.api.v1.metrics import RequestMetrics
from sandlot.domain.callers.principal import Principal
from sandlot.domain.callers.principal import Scope as KeyScope
from sandlot.domain.capacity.budget import Account, ByteBudget
from sandlot.domain.computer import ByteStream
from sandlot.domain.errors import NotFound, SandlotError, TooLarge
from sandlot.domain.service import SandboxHost
from sandlot.wire.network.http_headers import values_of

log = structlog.get_logger("sandlot.api")

# For metrics: real paths hold secrets.
ROUTE = "/preview"
_MAY = frozenset({KeyScope.NETWORK})


class PreviewGateway:
    def __init__(
        self, host: SandboxHost, options: PreviewOptions, admission: Admission, metrics: RequestMetrics
    ) -> None:
        self._host = host
        self._options = options
        self._admission = admission
        self._metrics = metrics
        self._budget = ByteBudget(options.max_held_bytes)
        self._requests = Turns(options.requests_per_session, options.visits, options.turn_s)
        self._websockets = Turns(options.websockets_per_session, options.visits, options.turn_s)

    def serves(self, scope: Scope) -> bool:
        return is_for_previews(scope, self._options.domain)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, answer = time.perf_counter(), _Answer(send)
        try:
            async with asyncio.timeout(self._options.total_s):
                await self._serve(scope, receive, answer.send)
        except Refused as refused:
            await self._refuse(scope, receive, answer, refused)
        except TimeoutError:
            log.debug("preview_too_long")
        except Exception as error:  # noqa: BLE001  last resort, as in the API's edge
            _log_unexpected_error(error)
            failed = Refused(500, "The preview failed", "The server failed in a way that it did not expect.")
            await self._refuse(scope, receive, answer, failed)
        finally:
            seconds = (answer.began or time.perf_counter()) - began
            self._metrics.observe(scope.get("method", "WEBSOCKET"), ROUTE, answer.status, seconds)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = read_visit(scope, self._options)
        if isinstance(visit, Redirect):
            await _redirect(visit)(scope, receive, send)
        elif scope["type"] == "websocket":
            async with self._websockets.turn(visit.session_id):
                await self._websocket(scope, receive, send, visit)
        elif (
            visit.place.prefix
            and scope["method"] == "OPTIONS"
            and (allowed := preflight(scope["headers"])) is not None
        ):
            answer = Response(status_code=204)
            answer.raw_headers = allowed
            await answer(scope, receive, send)
        else:
            async with self._requests.turn(visit.session_id):
                await self._http(scope, receive, send, visit)

    async def _http(self, scope: Scope, receive: Receive, send: Send, visit: Visit) -> None:
        body = BoundedBody(receive, self._options.max_body_bytes, DEFAULT_BODY_TIMEOUT_S)
        try:
            for length in values_of(scope["headers"], b"content-length"):
                body.check_content_length(int(length[:20]))
        except TooLarge as error:
            raise Refused(413, "Too large", error.message) from None
        stream = await self._connect(visit)
        try:
            await HttpVisit(
                scope, body, send, stream, visit, self._options, authorization=self._passes(scope, visit)
            ).run()
        finally:
            stream.abort()

    async def _websocket(self, scope: Scope, receive: Receive, send: Send, visit: Visit) -> None:
        websocket = WebSocket(scope, receive, send)
        await websocket.receive()  # its first message says only that it wants to connect
        account = Account(self._budget)
        stream = await self._connect(visit)
        try:
            await WebSocketVisit(
                websocket, stream, visit, self._options, account, authorization=self._passes(scope, visit)
            ).run()
        finally:
            account.close()
            stream.abort()

    async def _connect(self, visit: Visit) -> ByteStream:
        try:
            tenant = await self._host.tenant_of(visit.session_id)
        except NotFound:
            raise nothing_here() from None
        except SandlotError as error:
            raise refusal_of(error, visit.port) from None
        service = self._host.acting_for(Principal(tenant, _MAY, subject="preview"))
        try:
            return await service.connect(visit.session_id, visit.port, through=visit.through)
        except SandlotError as error:
            raise refusal_of(error, visit.port) from None

    def _passes(self, scope: Scope, visit: Visit) -> bool:
        """Whether the program may see the Authorization header. On the API's host it may be the API's."""
        said = values_of(scope["headers"], b"authorization")
        return not visit.place.prefix and not any(map(self._admission.is_credential, said))

    async def _refuse(self, scope: Scope, receive: Receive, answer: _Answer, refused: Refused) -> None:
        if answer.status:
            return  # an answer has begun: without its end, the visitor sees that it is not complete
        if scope["type"] == "http":
            await refused.page()(scope, receive, answer.send)
        elif "websocket.http.response" in scope.get("extensions", {}):
            websocket = WebSocket(scope, receive, answer.send)
            await websocket.send_denial_response(refused.page())
        else:
            await answer.send({"type": "websocket.close", "code": 1008})


def _log_unexpected_error(error: Exception) -> None:
    """Log the traceback as text: a traceback renderer might print variables, and links with them."""
    log.error("preview failed", traceback="".join(traceback.format_exception(error)))


class _Answer:
    """Notes what the visitor has got."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.began = 0.0

    async def send(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
        elif message["type"] in ("websocket.accept", "websocket.close") and not self.status:
            self.status = 101 if message["type"] == "websocket.accept" else 403
        self.began = self.began or time.perf_counter()
        await self._send(message)


def _redirect(redirect: Redirect) -> Response:
    answer = Response(status_code=307)
    answer.raw_headers = [
        (b"location", redirect.location),
        (b"content-length", b"0"),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
    ]
    if redirect.cookie:
        answer.raw_headers.append((b"set-cookie", redirect.cookie))
    return answer
