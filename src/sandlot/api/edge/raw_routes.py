"""Hot routes that bypass FastAPI, for calls between fleet members; ``api/README.md`` says which and why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from sandlot.api.edge.error_responses import check_is_post, error_response
from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import SandlotError

Handler = Callable[[Principal, bytes], Awaitable[tuple[int, bytes]]]


class RawRoute:
    """Serves POST. ``handle`` turns a caller and a request body into a status and a JSON response body."""

    def __init__(self, path: str, handle: Handler) -> None:
        self.path = path
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self
        try:
            check_is_post(scope)
            status, body = await self._handle(scope["state"]["principal"], await _read_body(receive))
        except (SandlotError, HTTPException) as error:
            await error_response(error, scope["state"]["request_id"])(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _read_body(receive: Receive) -> bytes:
    """Read the whole body. The edge limits its size."""
    pieces = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)
