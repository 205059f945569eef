"""A session's files over HTTP. Contents and archives are streamed both ways; the rest is JSON."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, Final

import httpx
import msgspec

from sandlot.client.http.routing.session_calls import SessionCalls
from sandlot.client.http.streams.event_streams import SILENCE_S
from sandlot.client.http.streams.sse import EventParser, ServerEvent
from sandlot.client.http.transport.connection import READ_TIMEOUT_S, SLOWEST_BYTES_PER_S, Connection
from sandlot.client.http.transport.errors import (
    error_of_problem,
    error_of_transport,
    interrupted,
    unreadable,
)
from sandlot.client.http.transport.request import encode, query
from sandlot.domain.errors import FileProblem, InvalidRequest
from sandlot.domain.files import ArchiveSummary, FileChange, FileEntry, FilePage, Search, Walk
from sandlot.wire.http_bodies import MkdirBody, MoveBody, RemovedBody

# The server answers an upload once the sandbox has written all of it to disk.
UPLOAD_ANSWER_S: Final = 600.0

_ENTRY: Final = msgspec.json.Decoder(FileEntry)
_PAGE: Final = msgspec.json.Decoder(FilePage)
_WALK: Final = msgspec.json.Decoder(Walk)
_SEARCH: Final = msgspec.json.Decoder(Search)
_REMOVED: Final = msgspec.json.Decoder(RemovedBody)
_SUMMARY: Final = msgspec.json.Decoder(ArchiveSummary)
_CHANGE: Final = msgspec.json.Decoder(FileChange)


class HttpFiles:
    """Implements ``Files`` by calling a server."""

    def __init__(self, calls: SessionCalls, path: str) -> None:
        self._calls = calls
        self._path = path

    async def stat(self, path: str, *, follow: bool = True) -> FileEntry:
        return await self._entry("GET", "/stat" + query(path=path, follow=follow), repeatable=True)

    async def list(self, path: str, *, after: str | None = None, limit: int = 1000) -> FilePage:
        page: FilePage = await self._get(_PAGE, query(path=path, after=after, limit=limit))
        return page

    async def walk(self, path: str, *, depth: int = 0, glob: str | None = None, limit: int = 10_000) -> Walk:
        walk: Walk = await self._get(_WALK, "/walk" + query(path=path, depth=depth, glob=glob, limit=limit))
        return walk

    async def search(
        self,
        path: str,
        pattern: str,
        *,
        regex: bool = False,
        ignore_case: bool = False,
        glob: str | None = None,
        limit: int = 1000,
    ) -> Search:
        params = query(
            path=path, pattern=pattern, regex=regex, ignore_case=ignore_case, glob=glob, limit=limit
        )
        search: Search = await self._get(_SEARCH, "/search" + params)
        return search

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        if offset < 0 or (length is not None and length < 0):
            raise InvalidRequest("offset and length must not be negative.")
        if length == 0:
            await self.stat(path)
            return
        target = self._path + "/content" + query(path=path)
        headers = None
        if offset or length is not None:
            headers = {"Range": f"bytes={offset}-{'' if length is None else offset + length - 1}"}
        try:
            async with self._calls.stream(target, headers=headers) as response:
                if headers is not None and response.status_code != 206:
                    raise unreadable(str(response.url), "got the whole file instead of the requested range")
                async for piece in response.aiter_raw():
                    yield piece
        except InvalidRequest:
            # The server refuses a range that starts after the end. Here that means an empty part.
            if offset < (await self.stat(path)).size:
                raise

    async def read_bytes(self, path: str, *, max_bytes: int = 16 * 1024 * 1024) -> bytes:
        pieces: builtins.list[bytes] = []
        total = 0
        async with self._calls.stream(self._path + "/content" + query(path=path)) as response:
            length = response.headers.get("content-length", "")
            if length.isdecimal() and int(length) > max_bytes:
                raise _too_large("The file", max_bytes, path)
            async for piece in response.aiter_raw():
                total += len(piece)
                if total > max_bytes:
                    raise _too_large("The file", max_bytes, path)
                pieces.append(piece)
        return b"".join(pieces)

    async def write(
        self,
        path: str,
        content: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        exclusive: bool = False,
    ) -> FileEntry:
        target = self._path + "/content" + query(path=path, mode=mode, parents=parents, exclusive=exclusive)
        headers = {"Content-Type": "application/octet-stream"}
        if isinstance(content, AsyncIterable):
            answer = await self._calls.upload(
                target, content, headers=headers, read_timeout_s=UPLOAD_ANSWER_S
            )
        else:
            answer = await self._calls.call(
                "PUT",
                target,
                bytes(content),
                repeatable=not exclusive,
                headers=headers,
                read_timeout_s=min(UPLOAD_ANSWER_S, READ_TIMEOUT_S + len(content) / SLOWEST_BYTES_PER_S),
            )
        entry: FileEntry = self._calls.decode(_ENTRY, answer)
        return entry

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileEntry:
        # With ``parents`` an existing folder is no error, so the request can be repeated.
        return await self._entry("POST", "/mkdir", MkdirBody(path, parents, mode), repeatable=parents)

    async def move(self, source: str, destination: str, *, overwrite: bool = False) -> FileEntry:
        return await self._entry("POST", "/move", MoveBody(source, destination, overwrite), repeatable=False)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> int:
        target = self._path + query(path=path, recursive=recursive, missing_ok=missing_ok)
        answer = await self._calls.call("DELETE", target, repeatable=missing_ok)
        removed: int = self._calls.decode(_REMOVED, answer).removed
        return removed

    def watch(
        self, path: str, *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]:
        return self._watch(path, recursive)

    @asynccontextmanager
    async def _watch(self, path: str, recursive: bool) -> AsyncIterator[AsyncIterator[FileChange]]:
        target = self._path + "/watch" + query(path=path, recursive=recursive)
        connection, response = await self._calls.open(
            target, headers={"Accept": "text/event-stream"}, read_timeout_s=SILENCE_S
        )
        try:
            async with aclosing(_server_events(connection, response)) as events:
                async for event in events:
                    if event.name == "ready":
                        break
                yield _changes(connection, events)
        finally:
            await response.aclose()

    async def read_archive(self, path: str, *, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        total = 0
        async with self._calls.stream(self._path + "/archive" + query(path=path)) as response:
            async for piece in response.aiter_raw():
                total += len(piece)
                if max_bytes is not None and total > max_bytes:
                    raise _too_large("The archive", max_bytes, path)
                yield piece

    async def write_archive(
        self,
        path: str,
        tar: AsyncIterable[bytes],
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> ArchiveSummary:
        target = self._path + "/archive" + query(path=path, max_bytes=max_bytes, max_files=max_files)
        answer = await self._calls.upload(
            target, tar, headers={"Content-Type": "application/x-tar"}, read_timeout_s=UPLOAD_ANSWER_S
        )
        summary: ArchiveSummary = self._calls.decode(_SUMMARY, answer)
        return summary

    # single calls

    async def _get(self, decoder: msgspec.json.Decoder[Any], path: str) -> Any:
        answer = await self._calls.call("GET", self._path + path, repeatable=True)
        return self._calls.decode(decoder, answer)

    async def _entry(self, method: str, path: str, body: Any = None, *, repeatable: bool) -> FileEntry:
        content = None if body is None else encode(body)
        answer = await self._calls.call(method, self._path + path, content, repeatable=repeatable)
        entry: FileEntry = self._calls.decode(_ENTRY, answer)
        return entry


async def _server_events(
    connection: Connection, response: httpx.Response
) -> AsyncGenerator[ServerEvent, None]:
    parser = EventParser()
    try:
        async for chunk in response.aiter_raw():
            for event in parser.feed(chunk):
                if event.name == "error":
                    raise error_of_problem(event.data)
                yield event
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise error_of_transport(connection.url, error) from error
    # A watch does not end by itself.
    raise interrupted(connection.url, "the server ended the watch")


async def _changes(connection: Connection, events: AsyncIterator[ServerEvent]) -> AsyncIterator[FileChange]:
    async for event in events:
        if event.name == "change":
            yield connection.decode(_CHANGE, event.data)


def _too_large(what: str, max_bytes: int, path: str) -> FileProblem:
    return FileProblem(f"{what} exceeds {max_bytes} bytes.", reason="too_large", path=path)
