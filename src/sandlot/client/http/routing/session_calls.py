"""The calls of one session, each on the route that is best at the moment (``routes.py``)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import httpx

from sandlot.client.http.retries.rules import FIRST_PAUSE_S, with_retries
from sandlot.client.http.routing.routes import Routes
from sandlot.client.http.transport.connection import READ_TIMEOUT_S, Connection, Decoder
from sandlot.domain.errors import SandlotError, Unauthorized, Unavailable

# Then the configured server is used. Each failure updates the routes, so even two are rare.
MAX_REROUTES: Final = 3

T = TypeVar("T")


class SessionCalls:
    """Makes calls for one session, straight to its worker or through the configured server."""

    def __init__(self, routes: Routes, session_id: str) -> None:
        self._routes = routes
        self._session_id = session_id
        self._last_used = routes.server

    async def on_best_route(
        self,
        attempt: Callable[[Connection], Awaitable[T]],
        *,
        repeatable: bool,
        one_time_body: OneTimeBody | None = None,
    ) -> T:
        """Make a call on the best route; if it fails and may be repeated, make it on another one.

        ``one_time_body``: the call's body, if it cannot be sent twice.
        """
        begun = False
        if self._routes.knows(self._session_id):
            for reroutes in range(MAX_REROUTES):
                connection = await self._routes.direct_to(self._session_id)
                if connection is None:
                    break
                self._last_used = connection
                try:
                    return await attempt(connection)
                except SandlotError as error:
                    begun = error.may_have_executed = begun or error.may_have_executed
                    if not await self._routes.reroute_after(
                        self._session_id, connection, error, repeatable=repeatable, again=reroutes > 0
                    ):
                        raise
                    if one_time_body is not None and one_time_body.begun:
                        # The worker refused the route's token, not the caller's key.
                        if isinstance(error, Unauthorized):
                            raise _upload_interrupted() from error
                        raise
        self._last_used = self._routes.server
        try:
            return await attempt(self._routes.server)
        except SandlotError as error:
            error.may_have_executed = begun or error.may_have_executed
            raise

    async def reroute_after(self, error: SandlotError, *, repeatable: bool, again: bool) -> bool:
        """Decide whether to reopen at once, on another route, what ``on_best_route`` opened last.

        Only for callers that make one call after the other.
        """
        return await self._routes.reroute_after(
            self._session_id, self._last_used, error, repeatable=repeatable, again=again
        )

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        repeatable: bool,
        headers: Mapping[str, str] | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> bytes:
        """Return the body of a successful answer; raise a ``SandlotError`` otherwise."""

        async def once(connection: Connection) -> tuple[int, bytes]:
            return await connection.call_once(
                method, path, body, headers=headers, read_timeout_s=read_timeout_s
            )

        _, answer = await with_retries(
            lambda: self.on_best_route(once, repeatable=repeatable), repeatable=repeatable
        )
        return answer

    async def upload(
        self, path: str, content: AsyncIterable[bytes], *, headers: Mapping[str, str], read_timeout_s: float
    ) -> bytes:
        """Upload content that can be read only once.

        A second route gets it only if the first has not started to read it.
        """
        one_time_body = OneTimeBody(content)

        async def once(connection: Connection) -> tuple[int, bytes]:
            return await connection.call_once(
                "PUT", path, one_time_body, headers=headers, read_timeout_s=read_timeout_s
            )

        _, answer = await self.on_best_route(once, repeatable=False, one_time_body=one_time_body)
        return answer

    async def open(
        self, path: str, *, headers: Mapping[str, str] | None = None, read_timeout_s: float = READ_TIMEOUT_S
    ) -> tuple[Connection, httpx.Response]:
        """Send a GET and return its connection and the answer with an unread body.

        The caller closes the answer.
        """

        async def once(connection: Connection) -> tuple[Connection, httpx.Response]:
            return connection, await connection.open(
                "GET", path, headers=headers, read_timeout_s=read_timeout_s
            )

        return await self.on_best_route(once, repeatable=True)

    @asynccontextmanager
    async def stream(
        self, path: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Send a GET whose body the caller reads.

        A break while reading raises a ``SandlotError``.
        """
        connection, response = await self.open(path, headers=headers)
        async with connection.reading(response):
            yield response

    def decode(self, decoder: Decoder[T], body: bytes) -> T:
        return self._last_used.decode(decoder, body)


class OneTimeBody:
    """A request body that is read while it is sent, so it can be sent only once."""

    def __init__(self, content: AsyncIterable[bytes]) -> None:
        self._content = content
        self.begun = False

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        self.begun = True
        async for piece in self._content:
            yield piece


def _upload_interrupted() -> SandlotError:
    return Unavailable(
        "Access to the session's worker was renewed during the upload. Send the content again.",
        retry_after_s=FIRST_PAUSE_S,
    )
