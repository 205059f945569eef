"""Answers that flow: server-sent events and file contents.

A client that goes away ends the reading, never the exec that it read. The reading is ended in order, by the
task that began it: whatever holds a stream or a watch is let go of before the request is over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandlot.api.answers import encoded
from sandlot.domain.budget import FREE_BYTES, hold
from sandlot.domain.computer import Execution
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import Output
from sandlot.domain.files import FileChange
from sandlot.wire.error_codes import problem_of
from sandlot.wire.exec_bodies import event_body

T = TypeVar("T")

EVENT_STREAM: Final = "text/event-stream"
PING_EVERY_S: Final = 15.0  # below the usual patience of proxies
PING: Final = b": ping\n\n"
# Seconds in which a client takes the next piece; one that reads nothing for longer is cut off.
TAKEN_WITHIN_S: Final = 300.0
# Of what is there as a whole already.
PIECE_BYTES: Final = 192 * 1024


class _NotTakenError(Exception):
    """The client has read nothing for too long. It is cut off, which is no failure of ours."""


class Flow(Response):
    """Sends chunks as they come; each waits until the client took the one before. ``let_go`` always runs.

    ``within_s``: a client that has not taken all by then is cut off. ``again``: the same chunks once more, of
    what can be made twice. HTTP/1.0 knows no pieces, and must be told the length first.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        *,
        again: Callable[[], AsyncIterator[bytes]] | None = None,
        let_go: Callable[[], Awaitable[None]] | None = None,
        media_type: str,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        within_s: float | None = None,
    ) -> None:
        self._chunks = chunks
        self._again = again
        self._let_go = let_go
        self._within_s = within_s
        self.body = b""
        self.status_code = status
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)
        if "content-length" not in (headers or {}):
            del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(scope, send))
        gone = asyncio.create_task(_client_gone(receive))
        try:
            await asyncio.wait({pump, gone}, timeout=self._within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pump.cancel()
            gone.cancel()
            await asyncio.gather(pump, gone, return_exceptions=True)
            await close(self._chunks)
            if self._let_go is not None:
                await self._let_go()
        if not pump.cancelled():
            with contextlib.suppress(_NotTakenError):
                pump.result()

    async def _pump(self, scope: Scope, send: Send) -> None:
        if (
            scope["http_version"] == "1.0"
            and self._again is not None
            and "content-length" not in self.headers
        ):
            self.headers["content-length"] = str(sum([len(chunk) async for chunk in self._again()]))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._chunks:
            try:
                async with asyncio.timeout(TAKEN_WITHIN_S):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except TimeoutError:
                raise _NotTakenError from None
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def whole_answer(
    body: bytes,
    media_type: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    within_s: float,
) -> Response:
    """What is encoded already. It would stay in its connection's buffer when the request is over, so a long
    one is counted and waited for, until the client has taken it.
    """
    if len(body) <= FREE_BYTES:
        return Response(body, status, headers, media_type)
    hold(len(body))
    with_length = {**(headers or {}), "content-length": str(len(body))}
    chunks = in_turn([body])
    return Flow(chunks, media_type=media_type, status=status, headers=with_length, within_s=within_s)


async def in_turn(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        for begin in range(0, len(piece), PIECE_BYTES):
            yield piece[begin : begin + PIECE_BYTES]


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def close(chunks: AsyncIterator[object]) -> None:
    """Iterators that are generators have something to give back."""
    aclose = getattr(chunks, "aclose", None)
    if aclose is not None:
        await aclose()


# --- server-sent events -------------------------------------------------------------------------


def events_answer(events: AsyncIterator[bytes], let_go: Callable[[], Awaitable[None]]) -> Flow:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the latter: nginx must not hold back
    return Flow(with_pings(events, PING), let_go=let_go, media_type=EVENT_STREAM, headers=headers)


def server_sent(name: str, body: object, event_id: int | None = None) -> bytes:
    """JSON has no line breaks of its own, so one data line holds it."""
    identity = b"" if event_id is None else b"id: %d\n" % event_id
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), identity, encoded(body))


async def exec_events(execution: Execution, offset: int, request_id: str) -> AsyncIterator[bytes]:
    """Each event's id is the offset to come back with."""
    try:
        async for event in execution.events():
            if isinstance(event, Output):
                offset = event.offset + len(event.data)
            name, body = event_body(execution.exec_id, event)
            yield server_sent(name, body, offset)
    except SandlotError as error:
        yield server_sent("error", problem_of(error, request_id), offset)


async def change_events(changes: AsyncIterator[FileChange], request_id: str) -> AsyncIterator[bytes]:
    yield server_sent("ready", {})
    try:
        async for change in changes:
            yield server_sent("change", change)
    except SandlotError as error:
        yield server_sent("error", problem_of(error, request_id))


async def with_pings(events: AsyncIterator[T], ping: T, every_s: float = PING_EVERY_S) -> AsyncGenerator[T]:
    """A ping whenever nothing came for a while: proxies stay, who is gone is noticed, on either side."""
    following: asyncio.Future[T | None] | None = None
    try:
        while True:
            following = asyncio.ensure_future(_next(events))
            while not (await asyncio.wait({following}, timeout=every_s))[0]:
                yield ping
            event = following.result()
            if event is None:
                return
            yield event
    finally:
        if following is not None and not following.done():
            following.cancel()
            await asyncio.wait({following})
        await close(events)


async def _next(events: AsyncIterator[T]) -> T | None:
    return await anext(events, None)
