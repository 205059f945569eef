"""Streamed responses: server-sent events and file contents.

A client that disconnects ends the reading, never the exec that it reads. The task that began the
reading also ends it: every stream or watch is released before the request ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandlot.api.responses.json import encode_json
from sandlot.domain.capacity.budget import FREE_BYTES, hold
from sandlot.domain.computer import Execution
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import Output
from sandlot.domain.files import FileChange
from sandlot.wire.error_codes import problem_of
from sandlot.wire.event_bodies import event_body

T = TypeVar("T")

EVENT_STREAM: Final = "text/event-stream"
PING_EVERY_S: Final = 15.0  # below the usual timeouts of proxies
PING: Final = b": ping\n\n"
# Seconds for a client to read the next piece. A client that takes longer is disconnected.
CLIENT_READ_TIMEOUT_S: Final = 300.0
# Size of the pieces that a complete body is sent in.
PIECE_BYTES: Final = 192 * 1024


class _ClientStalledError(Exception):
    """The client has read nothing for too long. It is disconnected, which is not our failure."""


class StreamedResponse(Response):
    """Sends each chunk after the client has taken the previous one. ``release`` always runs.

    ``timeout_s``: a client that has not read everything by then is disconnected. ``replay``: yields
    the same chunks again, where they can be produced twice. It is needed for HTTP/1.0, which has no
    chunked encoding, so the length must be sent first.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        *,
        replay: Callable[[], AsyncIterator[bytes]] | None = None,
        release: Callable[[], Awaitable[None]] | None = None,
        media_type: str,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._chunks = chunks
        self._replay = replay
        self._release = release
        self._timeout_s = timeout_s
        self.body = b""
        self.status_code = status
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)
        if "content-length" not in (headers or {}):
            del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(scope, send))
        disconnect = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait(
                {pump, disconnect}, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            pump.cancel()
            disconnect.cancel()
            await asyncio.gather(pump, disconnect, return_exceptions=True)
            await close_iterator(self._chunks)
            if self._release is not None:
                await self._release()
        if not pump.cancelled():
            with contextlib.suppress(_ClientStalledError):
                pump.result()

    async def _pump(self, scope: Scope, send: Send) -> None:
        if (
            scope["http_version"] == "1.0"
            and self._replay is not None
            and "content-length" not in self.headers
        ):
            self.headers["content-length"] = str(sum([len(chunk) async for chunk in self._replay()]))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._chunks:
            try:
                async with asyncio.timeout(CLIENT_READ_TIMEOUT_S):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except TimeoutError:
                raise _ClientStalledError from None
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def buffered_response(
    body: bytes,
    media_type: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
) -> Response:
    """A response whose body is already encoded.

    It would stay in its connection's buffer after the request ends. So a long body counts against
    the budget, and the request lasts until the client has read it.
    """
    if len(body) <= FREE_BYTES:
        return Response(body, status, headers, media_type)
    hold(len(body))
    with_length = {**(headers or {}), "content-length": str(len(body))}
    chunks = split_chunks([body])
    return StreamedResponse(
        chunks, media_type=media_type, status=status, headers=with_length, timeout_s=timeout_s
    )


async def split_chunks(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        for begin in range(0, len(piece), PIECE_BYTES):
            yield piece[begin : begin + PIECE_BYTES]


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def close_iterator(chunks: AsyncIterator[object]) -> None:
    """Close the iterator if it is a generator, which may hold resources."""
    aclose = getattr(chunks, "aclose", None)
    if aclose is not None:
        await aclose()


# --- server-sent events -------------------------------------------------------------------------


def event_stream_response(
    events: AsyncIterator[bytes], release: Callable[[], Awaitable[None]]
) -> StreamedResponse:
    # X-Accel-Buffering: nginx must not buffer the events.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamedResponse(
        with_pings(events, PING), release=release, media_type=EVENT_STREAM, headers=headers
    )


def format_sse(name: str, body: object, event_id: int | str | None = None) -> bytes:
    """One server-sent event. Encoded JSON has no line breaks, so it fits on one data line."""
    id_line = b"" if event_id is None else b"id: %s\n" % str(event_id).encode()
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), id_line, encode_json(body))


async def exec_events(execution: Execution, offset: int, request_id: str) -> AsyncIterator[bytes]:
    """An exec's events as server-sent events. Each event's id is the offset to resume from."""
    try:
        async for event in execution.events():
            if isinstance(event, Output):
                offset = event.offset + len(event.data)
            name, body = event_body(execution.exec_id, event)
            yield format_sse(name, body, offset)
    except SandlotError as error:
        yield format_sse("error", problem_of(error, request_id), offset)


async def change_events(changes: AsyncIterator[FileChange], request_id: str) -> AsyncIterator[bytes]:
    yield format_sse("ready", {})
    try:
        async for change in changes:
            yield format_sse("change", change)
    except SandlotError as error:
        yield format_sse("error", problem_of(error, request_id))


async def with_pings(events: AsyncIterator[T], ping: T, every_s: float = PING_EVERY_S) -> AsyncGenerator[T]:
    """The events, plus a ping whenever none has come for ``every_s`` seconds.

    Pings keep proxies from closing the connection, and let either side notice that the other has
    disconnected.
    """
    next_event: asyncio.Future[T | None] | None = None
    try:
        while True:
            next_event = asyncio.ensure_future(_next_or_none(events))
            while not (await asyncio.wait({next_event}, timeout=every_s))[0]:
                yield ping
            event = next_event.result()
            if event is None:
                return
            yield event
    finally:
        if next_event is not None and not next_event.done():
            next_event.cancel()
            await asyncio.wait({next_event})
        await close_iterator(events)


async def _next_or_none(events: AsyncIterator[T]) -> T | None:
    return await anext(events, None)
