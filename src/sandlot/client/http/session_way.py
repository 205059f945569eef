"""The calls of one session, each on the way that is best now (``ways.py``)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import httpx

from sandlot.client.http.connection import READ_TIMEOUT_S, Connection, Decoder
from sandlot.client.http.retries import FIRST_PAUSE_S, with_retries
from sandlot.client.http.ways import Ways
from sandlot.domain.errors import SandlotError, Unauthorized, Unavailable

# Then the door is taken. Each turn changes what is known of the ways, so there are hardly ever two.
MAX_TURNS: Final = 3

T = TypeVar("T")


class SessionWay:
    def __init__(self, ways: Ways, session_id: str) -> None:
        self._ways = ways
        self._session_id = session_id
        self._used = ways.door

    async def through(
        self,
        attempt: Callable[[Connection], Awaitable[T]],
        *,
        repeatable: bool,
        sent: OnceSent | None = None,
    ) -> T:
        """``attempt`` on the best way, and where that fails and nothing forbids it, on another one.

        ``sent``: what is sent along and cannot be sent twice.
        """
        begun = False
        if self._ways.knows(self._session_id):
            for turns in range(MAX_TURNS):
                connection = await self._ways.of(self._session_id)
                if connection is None:
                    break
                self._used = connection
                try:
                    return await attempt(connection)
                except SandlotError as error:
                    begun = error.may_have_executed = begun or error.may_have_executed
                    if not await self._ways.turn(
                        self._session_id, connection, error, repeatable=repeatable, again=turns > 0
                    ):
                        raise
                    if sent is not None and sent.begun:
                        if isinstance(error, Unauthorized):  # of the way, not of the caller
                            raise _cut_short() from error
                        raise
        self._used = self._ways.door
        try:
            return await attempt(self._ways.door)
        except SandlotError as error:
            error.may_have_executed = begun or error.may_have_executed
            raise

    async def turn(self, error: SandlotError, *, repeatable: bool, again: bool) -> bool:
        """For what goes wrong on what ``through`` opened last: whether to open it at once on another way.

        For who makes one call after the other.
        """
        return await self._ways.turn(self._session_id, self._used, error, repeatable=repeatable, again=again)

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
        """The body of a good answer; an error of the tree otherwise."""

        async def once(connection: Connection) -> tuple[int, bytes]:
            return await connection.call_once(
                method, path, body, headers=headers, read_timeout_s=read_timeout_s
            )

        _, answer = await with_retries(
            lambda: self.through(once, repeatable=repeatable), repeatable=repeatable
        )
        return answer

    async def upload(
        self, path: str, content: AsyncIterable[bytes], *, headers: Mapping[str, str], read_timeout_s: float
    ) -> bytes:
        """Content that can be read once, so it is given to a second way only if no first has begun on it."""
        sent = OnceSent(content)

        async def once(connection: Connection) -> tuple[int, bytes]:
            return await connection.call_once(
                "PUT", path, sent, headers=headers, read_timeout_s=read_timeout_s
            )

        _, answer = await self.through(once, repeatable=False, sent=sent)
        return answer

    async def open(
        self, path: str, *, headers: Mapping[str, str] | None = None, read_timeout_s: float = READ_TIMEOUT_S
    ) -> tuple[Connection, httpx.Response]:
        """An answer to GET whose body is still to be read, and where it comes from; the caller closes it."""

        async def once(connection: Connection) -> tuple[Connection, httpx.Response]:
            return connection, await connection.open(
                "GET", path, headers=headers, read_timeout_s=read_timeout_s
            )

        return await self.through(once, repeatable=True)

    @asynccontextmanager
    async def stream(
        self, path: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """A GET whose body the caller reads; what breaks meanwhile is an error of the tree."""
        connection, response = await self.open(path, headers=headers)
        async with connection.reading(response):
            yield response

    def decode(self, decoder: Decoder[T], body: bytes) -> T:
        return self._used.decode(decoder, body)


class OnceSent:
    """A body that is read while it is sent."""

    def __init__(self, content: AsyncIterable[bytes]) -> None:
        self._content = content
        self.begun = False

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        self.begun = True
        async for piece in self._content:
            yield piece


def _cut_short() -> SandlotError:
    return Unavailable(
        "the way to the session's worker had to be renewed while content was sent; send it again",
        retry_after_s=FIRST_PAUSE_S,
    )
