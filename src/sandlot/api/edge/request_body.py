"""Limits on a request body's size and time while it is read, so that no route has to check them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from sandlot.domain.errors import TooLarge

MIB: Final = 1024 * 1024
MAX_JSON_BYTES: Final = 4 * MIB
MAX_JSON_VALUES: Final = 10_000
# A form is stored on this machine's disk until it is complete. Larger files use PUT, which streams.
MAX_FORM_BYTES: Final = 64 * MIB
DEFAULT_MAX_UPLOAD_BYTES: Final = 1024 * MIB
DEFAULT_BODY_TIMEOUT_S: Final = 30.0
MIN_BYTES_PER_S: Final = 1024  # a slower body is an attack, not a slow client
DRAIN_BYTES: Final = 64 * MIB
DRAIN_S: Final = 5.0

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The largest upload, and the seconds that the server waits for a body."""

    max_upload_bytes: int = DEFAULT_MAX_UPLOAD_BYTES
    timeout_s: float = DEFAULT_BODY_TIMEOUT_S

    def limit(self, method: str, path: str) -> int:
        if method == "PUT" and path.endswith(("/files/content", "/files/archive")):
            return self.max_upload_bytes
        if path == "/upload_file":
            return min(self.max_upload_bytes, MAX_FORM_BYTES)
        return MAX_JSON_BYTES

    def time(self, method: str, path: str) -> float:
        """Seconds to wait for a body, apart from what its length takes."""
        return self.timeout_s


class BoundedBody:
    """Replaces ``receive``. Only time spent waiting for the client counts against its timeout."""

    def __init__(self, receive: Receive, limit: int, timeout_s: float) -> None:
        self._receive = receive
        self._limit = limit
        self._timeout_s = timeout_s
        self._received = 0
        self._waited = 0.0
        self._timed_out = False
        self.complete = False

    def check_content_length(self, length: int) -> None:
        if length > self._limit:
            raise self._too_large()

    async def receive(self) -> Message:
        if self.complete:
            return await self._receive()
        began = asyncio.get_running_loop().time()
        left = self._timeout_s + self._received / MIN_BYTES_PER_S - self._waited
        try:
            async with asyncio.timeout(max(0.0, left)):
                message = await self._receive()
        except TimeoutError:
            self._timed_out = True
            raise HTTPException(408, "The request body arrived too slowly.") from None
        self._waited += asyncio.get_running_loop().time() - began
        self._count(message)
        if self._received > self._limit:
            raise self._too_large()
        return message

    async def discard_buffered(self) -> None:
        """Discard what has already arrived. After that, the body may turn out to be complete."""
        await self._discard(0)

    async def drain(self) -> None:
        """Discard some of what the client is still sending.

        If the connection closed on unread data, the client's kernel would drop the response before
        it was read.
        """
        await self._discard(0 if self._timed_out else DRAIN_S)

    async def _discard(self, seconds: float) -> None:
        until = self._received + DRAIN_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.complete and self._received < until:
                    self._count(await self._receive())

    def _count(self, message: Message) -> None:
        self._received += len(message.get("body", b""))
        self.complete = not message.get("more_body", False)  # a disconnect message has no more_body

    def _too_large(self) -> TooLarge:
        return TooLarge(f"The request body exceeds {self._limit} bytes.", details={"max_bytes": self._limit})


class _JsonRequest(Request):
    async def json(self) -> Any:
        return decode_json(await self.body())


class JsonRoute(APIRoute):
    """Reads JSON strictly: no lone surrogates, no NaN, no unlimited depth or digits."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            response: Response = await handle(_JsonRequest(request.scope, request.receive))
            return response

        return strict


def decode_json(body: bytes) -> Any:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise HTTPException(422, f"Invalid request body: {error}") from None
    if _more_values_than(MAX_JSON_VALUES, value):
        raise HTTPException(422, f"The request body has more than {MAX_JSON_VALUES} values.")
    return value


def _more_values_than(most: int, value: Any) -> bool:
    """Whether the JSON has more than ``most`` values.

    Validation checks every value and reports each bad one, so a body full of bad values would stall
    the server.
    """
    pending = [value]
    count = 0
    while pending:
        value = pending.pop()
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        count += len(children)
        if count > most:
            return True
        pending.extend(children)
    return False
