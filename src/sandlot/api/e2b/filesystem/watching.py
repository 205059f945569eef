"""Watching a folder: as a stream, or by asking for what has changed since the last time.

E2B's synchronous SDK asks. So a server keeps changes for it, in bounded numbers, and forgets a watcher that
nobody asks any more. A watcher lives in the process that made it: behind several coordinators, a client has
to stay with one, and no watcher outlives a restart of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import Response

from sandlot.api.e2b.bodies import read_body
from sandlot.api.e2b.calls import Handler, SandboxCall
from sandlot.api.e2b.connect_rpc import STREAM, end_of_stream, message, only_message
from sandlot.api.e2b.errors import connect_error
from sandlot.api.e2b.filesystem.bodies import Watch, Watcher
from sandlot.api.e2b.filesystem.changes import Changes, Event
from sandlot.api.e2b.process.events import keepalive_of
from sandlot.api.responses.json import json_response
from sandlot.api.responses.streams import StreamedResponse, with_pings
from sandlot.domain.capacity.budget import current_account
from sandlot.domain.computer import Files
from sandlot.domain.errors import Busy, InvalidRequest, NotFound, SandlotError, Unsupported
from sandlot.domain.files import FileChange, FileChangeType, FileType

MAX_WATCHERS: Final = 1024
MAX_WATCHERS_PER_SESSION: Final = 32
# Changes that are kept for one watcher.
MAX_CHANGES: Final = 4096
# Seconds after which a watcher that nobody asks is forgotten.
FORGET_AFTER_S: Final = 600.0
_LOOK_EVERY_S: Final = 30.0
_KEEPALIVE: Final = message({"keepalive": {}})
_TOO_FAST: Final = (
    "Files changed faster than the changes were read, and some are lost. Look again, then watch anew."
)


async def watch_dir(call: SandboxCall) -> Response:
    body = _checked(read_body(only_message(await call.request.body()), Watch))
    call.check_user()
    files = call.service.files(call.session_id)
    folder = await _folder(files, body.path)
    stack = contextlib.AsyncExitStack()
    changes = await stack.enter_async_context(files.watch(folder, recursive=body.recursive))
    keepalive_s = keepalive_of(call.header("keepalive-ping-interval"))
    return StreamedResponse(_events(changes, folder, keepalive_s), release=stack.aclose, media_type=STREAM)


async def _events(
    changes: AsyncIterator[FileChange], folder: str, keepalive_s: float
) -> AsyncIterator[bytes]:
    yield message({"start": {}})
    read = Changes(folder)
    try:
        async for change in with_pings(changes, None, keepalive_s):
            if change is None:
                yield _KEEPALIVE
            elif change.type is FileChangeType.OVERFLOW:
                yield end_of_stream({"code": "resource_exhausted", "message": _TOO_FAST})
                return
            else:
                for event in read.events(change):
                    yield message({"filesystem": event})
    except SandlotError as error:
        yield end_of_stream(connect_error(error))
    else:
        yield end_of_stream()


def _checked(body: Watch) -> Watch:
    if body.include_entry:
        raise Unsupported("Changes come without the entries of their files. Leave out include_entry.")
    return body


async def _folder(files: Files, path: str) -> str:
    """The absolute path of the folder, to which the names of changes are relative."""
    entry = await files.stat(path)
    if entry.type is not FileType.DIRECTORY:
        raise InvalidRequest(f"{path!r:.200} is not a folder.")
    return entry.path


class _Kept:
    """Changes that wait until somebody asks for them."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.changes: deque[Event] = deque()
        self.error: SandlotError | None = None
        self.asked_at = time.monotonic()
        self.task: asyncio.Task[None] | None = None

    @property
    def is_forgotten(self) -> bool:
        return time.monotonic() - self.asked_at > FORGET_AFTER_S

    async def collect(
        self, files: Files, folder: str, *, recursive: bool, ready: asyncio.Future[None]
    ) -> None:
        read = Changes(folder)
        try:
            async with files.watch(folder, recursive=recursive) as changes:
                ready.set_result(None)
                async for change in with_pings(changes, None, _LOOK_EVERY_S):
                    if self.is_forgotten:
                        return
                    if change is None:
                        continue
                    if change.type is FileChangeType.OVERFLOW or len(self.changes) >= MAX_CHANGES:
                        self.error = Busy(_TOO_FAST, details={"reason": "changes", "at_most": MAX_CHANGES})
                        return
                    self.changes.extend(read.events(change))
                self.error = NotFound("The watch has ended with its sandbox. Watch anew.")
        except SandlotError as error:
            self.error = error
            if not ready.done():
                ready.set_exception(error)


class Watchers:
    """The watchers that clients of this process ask."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    async def create(self, call: SandboxCall) -> Response:
        body = _checked(read_body(await call.request.body(), Watch))
        call.check_user()
        self._forget_unused()
        own = sum(kept.session_id == call.session_id for kept in self._kept.values())
        if own >= MAX_WATCHERS_PER_SESSION or len(self._kept) >= MAX_WATCHERS:
            most = MAX_WATCHERS_PER_SESSION if own >= MAX_WATCHERS_PER_SESSION else MAX_WATCHERS
            raise Busy(
                f"There are {most} watchers, which is the most. Stop some.",
                details={"reason": "watchers", "at_most": most},
            )
        files = call.service.files(call.session_id)
        folder = await _folder(files, body.path)
        kept, watcher_id = _Kept(call.session_id), "w" + secrets.token_hex(12)
        self._kept[watcher_id] = kept
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The watch outlives the request, and so it is not for the request's account.
        account = current_account.set(None)
        try:
            kept.task = asyncio.create_task(
                kept.collect(files, folder, recursive=body.recursive, ready=ready), name="watcher"
            )
        finally:
            current_account.reset(account)
        try:
            await ready
        except BaseException:
            self._drop(watcher_id)
            raise
        return json_response({"watcherId": watcher_id})

    async def events(self, call: SandboxCall) -> Response:
        watcher_id, kept = self._named(call, read_body(await call.request.body(), Watcher))
        kept.asked_at = time.monotonic()
        if kept.error is not None and not kept.changes:
            self._drop(watcher_id)
            raise kept.error
        events = list(kept.changes)
        kept.changes.clear()
        return json_response({"events": events})

    async def remove(self, call: SandboxCall) -> Response:
        watcher_id, _ = self._named(call, read_body(await call.request.body(), Watcher))
        self._drop(watcher_id)
        return json_response({})

    def _named(self, call: SandboxCall, body: Watcher) -> tuple[str, _Kept]:
        kept = self._kept.get(body.watcher_id)
        if kept is None or kept.session_id != call.session_id:
            raise NotFound(f"watcher {body.watcher_id[:40]!r} not found")
        return body.watcher_id, kept

    def _drop(self, watcher_id: str) -> None:
        kept = self._kept.pop(watcher_id, None)
        if kept is not None and kept.task is not None:
            kept.task.cancel()

    def _forget_unused(self) -> None:
        for watcher_id, kept in list(self._kept.items()):
            if kept.is_forgotten:
                self._drop(watcher_id)

    def methods(self) -> dict[str, Handler]:
        return {
            "/filesystem.Filesystem/WatchDir": watch_dir,
            "/filesystem.Filesystem/CreateWatcher": self.create,
            "/filesystem.Filesystem/GetWatcherEvents": self.events,
            "/filesystem.Filesystem/RemoveWatcher": self.remove,
        }
