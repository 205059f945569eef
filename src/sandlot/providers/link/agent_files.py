"""A sandbox's files: every operation runs inside, as the sandbox's user, over the files link.

Nothing here holds a whole file. Reads and archives stream. Writes take data from their source
as credit arrives. Collected answers are bounded by what the caller asked for.
"""

from __future__ import annotations

from builtins import list as builtin_list  # the contract has a method named list
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from sandlot.domain.errors import FileProblem, InvalidRequest, LinkInterrupted
from sandlot.domain.files import ArchiveSummary, FileChange, FileEntry, FilePage, Search, Walk
from sandlot.providers.link.calls import Call
from sandlot.providers.link.link import AgentLink
from sandlot.providers.link.mux import Mux
from sandlot.providers.link.stream import LinkClosed, Message, Stream
from sandlot.wire.agent_messages import (
    flag,
    integer,
    optional_file_name,
    parse_archive,
    parse_changes,
    parse_entries,
    parse_entry_answer,
    parse_matches,
    parse_removed,
)
from sandlot.wire.frames import ProtocolViolation

MAX_PAGE: Final = 10_000  # entries in one list, matches in one search
MAX_WALK: Final = 100_000
MAX_PATH_BYTES: Final = 65_536


P = ParamSpec("P")
T = TypeVar("T")
Operation = Callable[Concatenate["AgentFiles", P], Coroutine[Any, Any, T]]


def retry_once(operation: Operation[P, T]) -> Operation[P, T]:
    """Retries a read-only operation once if the files link breaks.

    Commands can kill the helper that serves the link (``kill -9 -1``). The next one then answers.
    """

    @wraps(operation)
    async def with_retry(files: AgentFiles, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await operation(files, *args, **kwargs)
        except LinkInterrupted as problem:
            cause = problem.__cause__
            if not isinstance(cause, LinkClosed) or cause.violation is not None:
                raise
            return await operation(files, *args, **kwargs)

    return with_retry


class AgentFiles:
    """Implements ``Files`` on an agent link."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link

    @retry_once
    async def stat(self, path: str, *, follow: bool = True) -> FileEntry:
        return await self._request_entry(path, {"op": "file.stat", "path": path, "follow": follow})

    @retry_once
    async def list(self, path: str, *, after: str | None = None, limit: int = 1000) -> FilePage:
        _check_limit(limit, MAX_PAGE)
        request: dict[str, Any] = {"op": "file.list", "path": path, "limit": limit}
        if after is not None:
            request["after"] = after
        with await self._call(path) as call:
            await call.open(request)
            entries, last = await call.collect(parse_entries, limit)
            if "next" not in last:
                raise ProtocolViolation("a listing has no last message")
            return FilePage(tuple(entries), optional_file_name(last, "next"))

    @retry_once
    async def walk(self, path: str, *, depth: int = 0, glob: str | None = None, limit: int = 10_000) -> Walk:
        _check_limit(limit, MAX_WALK)
        if depth < 0:
            raise InvalidRequest("depth must be 0 (all levels) or more.")
        request: dict[str, Any] = {"op": "file.walk", "path": path, "depth": depth, "limit": limit}
        if glob is not None:
            request["glob"] = glob
        with await self._call(path) as call:
            await call.open(request)
            entries, last = await call.collect(parse_entries, limit)
            return Walk(tuple(entries), flag(last, "truncated"))

    @retry_once
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
        _check_limit(limit, MAX_PAGE)
        if not _is_utf8(pattern):
            raise InvalidRequest("The pattern is not valid Unicode text.")
        request: dict[str, Any] = {
            "op": "file.search",
            "path": path,
            "pattern": pattern,
            "regex": regex,
            "ignore_case": ignore_case,
            "limit": limit,
        }
        if glob is not None:
            request["glob"] = glob
        with await self._call(path) as call:
            await call.open(request)
            matches, last = await call.collect(parse_matches, limit)
            return Search(tuple(matches), flag(last, "truncated"))

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        if offset < 0 or (length is not None and length < 0):
            raise InvalidRequest("offset and length must not be negative.")
        request: dict[str, Any] = {"op": "file.read", "path": path, "offset": offset}
        if length is not None:
            request["length"] = length
        call = await self._begin_read(path, request)
        with call:
            position = offset
            while isinstance(chunk := await call.next_chunk(position), bytes):
                position += len(chunk)
                if length is not None and position - offset > length:
                    raise ProtocolViolation("the agent sent more than was asked for")
                yield chunk
            _check_total(chunk, position - offset)

    @retry_once
    async def _begin_read(self, path: str, request: dict[str, Any]) -> Call:
        call = await self._call(path)
        with call:
            await call.open(request)
            parse_entry_answer(await call.next_message())
            stream = call.detach_stream()
        return call.attach_stream(stream)

    @retry_once
    async def read_bytes(self, path: str, *, max_bytes: int = 16 * 1024 * 1024) -> bytes:
        request = {"op": "file.read", "path": path, "offset": 0, "max_bytes": max_bytes}
        too_large = FileProblem(f"The file exceeds {max_bytes} bytes.", reason="too_large", path=path)
        with await self._call(path) as call:
            await call.open(request)
            if parse_entry_answer(await call.next_message()).size > max_bytes:
                raise too_large
            chunks: builtin_list[bytes] = []
            total = 0
            while isinstance(chunk := await call.next_chunk(total), bytes):
                chunks.append(chunk)
                total += len(chunk)
                if total > max_bytes:
                    raise ProtocolViolation("the agent sent more than was asked for")
            _check_total(chunk, total)
            if flag(chunk, "truncated"):  # the file grew during the read
                raise too_large
            return b"".join(chunks)

    async def write(
        self,
        path: str,
        content: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        exclusive: bool = False,
    ) -> FileEntry:
        request: dict[str, Any] = {
            "op": "file.write",
            "path": path,
            "parents": parents,
            "exclusive": exclusive,
        }
        if mode is not None:
            request["mode"] = mode
        with await self._call(path) as call:
            await _send_all(await call.open(request, end=False), content)
            return await call.answer(parse_entry_answer)

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileEntry:
        return await self._request_entry(
            path, {"op": "file.mkdir", "path": path, "parents": parents, "mode": mode}
        )

    async def move(self, source: str, destination: str, *, overwrite: bool = False) -> FileEntry:
        _check_path(destination)
        request = {
            "op": "file.move",
            "source": source,
            "destination": destination,
            "overwrite": overwrite,
        }
        return await self._request_entry(source, request)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> int:
        request = {"op": "file.remove", "path": path, "recursive": recursive, "missing_ok": missing_ok}
        with await self._call(path) as call:
            await call.open(request)
            return await call.answer(parse_removed)

    def watch(
        self, path: str, *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]:
        return self._watch(path, recursive)

    @asynccontextmanager
    async def _watch(self, path: str, recursive: bool) -> AsyncIterator[AsyncIterator[FileChange]]:
        mux = await self._mux(path)
        with Call(self._link, mux, path) as call:
            # Send no END after the request: it would end the watch.
            stream = await call.open({"op": "file.watch", "path": path, "recursive": recursive}, end=False)
            if not flag(await call.next_message(), "ready"):
                raise ProtocolViolation("a watch that is not ready")
            yield self._changes(path, mux, stream)

    async def _changes(self, path: str, mux: Mux, stream: Stream) -> AsyncIterator[FileChange]:
        with Call(self._link, mux, path):
            while (item := await stream.receive()) is not None:
                if not isinstance(item, Message):
                    raise ProtocolViolation("expected a message")
                for change in parse_changes(item.body):
                    yield change

    async def read_archive(self, path: str, *, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        request: dict[str, Any] = {"op": "archive.read", "path": path}
        if max_bytes is not None:
            request["max_bytes"] = max_bytes
        with await self._call(path) as call:
            await call.open(request)
            total = 0
            while isinstance(chunk := await call.next_chunk(total), bytes):
                total += len(chunk)
                if max_bytes is not None and total > max_bytes:
                    raise FileProblem(
                        f"The archive exceeds {max_bytes} bytes.", reason="too_large", path=path
                    )
                yield chunk
            parse_archive(chunk)

    async def write_archive(
        self,
        path: str,
        tar: AsyncIterable[bytes],
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> ArchiveSummary:
        request: dict[str, Any] = {"op": "archive.write", "path": path}
        if max_bytes is not None:
            request["max_bytes"] = max_bytes
        if max_files is not None:
            request["max_files"] = max_files
        with await self._call(path) as call:
            await _send_all(await call.open(request, end=False), tar)
            return await call.answer(parse_archive)

    async def _mux(self, path: str) -> Mux:
        _check_path(path)
        return await self._link.files()

    async def _call(self, path: str) -> Call:
        return Call(self._link, await self._mux(path), path)

    async def _request_entry(self, path: str, request: dict[str, Any]) -> FileEntry:
        with await self._call(path) as call:
            await call.open(request)
            return await call.answer(parse_entry_answer)


async def _send_all(stream: Stream, content: bytes | AsyncIterable[bytes]) -> None:
    """Sends all content. Raises as soon as the agent refuses it.

    If the source fails, the stream is reset, and the agent leaves no partial file behind.
    """
    if isinstance(content, (bytes, bytearray, memoryview)):
        await stream.send_data(content)
    else:
        async for chunk in content:
            await stream.send_data(chunk)
    stream.send_end()


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_path(path: str) -> None:
    """Rejects a string that can never be a path, without asking the agent."""
    try:
        size = len(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MAX_PATH_BYTES or "\0" in path:
        raise FileProblem(
            "Invalid path: it is empty, too long, or contains a NUL character.",
            reason="invalid_path",
            path=path,
        )


def _check_limit(limit: int, maximum: int) -> None:
    if not 0 < limit <= maximum:
        raise InvalidRequest(f"limit must be between 1 and {maximum}.")


def _check_total(body: dict[str, Any], total: int) -> None:
    if integer(body, "bytes") != total:
        raise ProtocolViolation("the agent reports a different size than was sent")
