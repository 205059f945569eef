"""A request's body, bounded in size and in time while it is read, so that no route has to think of it."""

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
# A form is kept on this machine's disk until it is whole; bigger files go by PUT, which streams them.
MAX_FORM_BYTES: Final = 64 * MIB
DEFAULT_MAX_UPLOAD_BYTES: Final = 1024 * MIB
DEFAULT_BODY_TIMEOUT_S: Final = 30.0
MIN_BYTES_PER_S: Final = 1024  # below this a body is not slow but an attack
DRAIN_BYTES: Final = 64 * MIB
DRAIN_S: Final = 5.0

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class BodyBounds:
    max_upload_bytes: int = DEFAULT_MAX_UPLOAD_BYTES
    timeout_s: float = DEFAULT_BODY_TIMEOUT_S

    def limit(self, method: str, path: str) -> int:
        if method == "PUT" and path.endswith(("/files/content", "/files/archive")):
            return self.max_upload_bytes
        if path == "/upload_file":
            return min(self.max_upload_bytes, MAX_FORM_BYTES)
        return MAX_JSON_BYTES


class BoundedBody:
    """Stands in for ``receive``. Only time spent waiting for the client counts against it, not ours."""

    def __init__(self, receive: Receive, limit: int, timeout_s: float) -> None:
        self._receive = receive
        self._limit = limit
        self._timeout_s = timeout_s
        self._received = 0
        self._waited = 0.0
        self._timed_out = False
        self.complete = False

    def check_announced(self, length: int) -> None:
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
            raise HTTPException(408, "the body came too slowly") from None
        self._waited += asyncio.get_running_loop().time() - began
        self._count(message)
        if self._received > self._limit:
            raise self._too_large()
        return message

    async def settle(self) -> None:
        """Takes what is here already; then it may turn out to be complete."""
        await self._discard(0)

    async def drain(self) -> None:
        """Takes a little of what is still being sent. Closing on data that nobody read would make the other
        side's kernel throw away the answer that came before."""
        await self._discard(0 if self._timed_out else DRAIN_S)

    async def _discard(self, seconds: float) -> None:
        until = self._received + DRAIN_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.complete and self._received < until:
                    self._count(await self._receive())

    def _count(self, message: Message) -> None:
        self._received += len(message.get("body", b""))
        self.complete = not message.get("more_body", False)  # a disconnect has none

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is larger than {self._limit} bytes", details={"max_bytes": self._limit})


class _JsonRequest(Request):
    async def json(self) -> Any:
        return decoded(await self.body())


class JsonRoute(APIRoute):
    """A route whose JSON is read strictly: no lone surrogates, no NaN, no endless depth or digits."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            response: Response = await handle(_JsonRequest(request.scope, request.receive))
            return response

        return strict


def decoded(body: bytes) -> Any:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise HTTPException(422, f"the body is not the JSON that is wanted: {error}") from None
    if _more_values_than(MAX_JSON_VALUES, value):
        raise HTTPException(422, f"the body has more than {MAX_JSON_VALUES} values")
    return value


def _more_values_than(most: int, value: Any) -> bool:
    """Validation looks at every one and complains of each: a body of nothing else would stall us."""
    waiting = [value]
    seen = 0
    while waiting:
        value = waiting.pop()
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        seen += len(inside)
        if seen > most:
            return True
        waiting.extend(inside)
    return False
