"""``AsyncOverSync``: gives the sync client the async interface, so that one suite tests both.

The async classes say which methods are awaited, iterated or entered. Each call runs in a thread.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Final

from sandlot.client.artifacts.async_artifacts import AsyncArtifacts, AsyncSessionArtifacts
from sandlot.client.async_client import AsyncClient
from sandlot.client.async_exec import AsyncExec
from sandlot.client.async_files import AsyncFiles
from sandlot.client.async_network import AsyncNetwork
from sandlot.client.async_session import AsyncSession, AsyncShell
from sandlot.client.code.async_code import AsyncCode, AsyncCodeContext
from sandlot.client.opening import Opening
from sandlot.client.sync.artifacts import Artifacts, SessionArtifacts
from sandlot.client.sync.client import Client
from sandlot.client.sync.code import Code, CodeContext
from sandlot.client.sync.session import Exec, Files, Network, Session, Shell
from sandlot.client.sync.volumes import Volumes
from sandlot.client.sync.workspace import SessionWorkspace
from sandlot.client.volumes.async_volumes import AsyncVolumes
from sandlot.client.workspaces.async_workspace import AsyncSessionWorkspace

# Each blocked call occupies a thread. The suite has up to this many calls at once.
THREADS: Final = 100
_ASYNC: Final[dict[type, type]] = {
    Client: AsyncClient,
    Session: AsyncSession,
    Exec: AsyncExec,
    Shell: AsyncShell,
    Files: AsyncFiles,
    Network: AsyncNetwork,
    Code: AsyncCode,
    CodeContext: AsyncCodeContext,
    Artifacts: AsyncArtifacts,
    SessionArtifacts: AsyncSessionArtifacts,
    Volumes: AsyncVolumes,
    SessionWorkspace: AsyncSessionWorkspace,
}
_OPENING: Final = (AsyncClient.create, AsyncClient.thread)
_RENAMED: Final = {"aclose": "close"}
_END: Final = object()


class AsyncOverSync:
    """Wraps an object of the sync client. The caller shuts ``threads`` down."""

    def __init__(self, sync_object: object, threads: ThreadPoolExecutor) -> None:
        self._sync_object = sync_object
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._sync_object, _RENAMED.get(name, name))
        if not callable(value):
            return self._wrap(value)
        original = getattr(_ASYNC[type(self._sync_object)], name)
        if original in _OPENING:
            return lambda *args, **kwargs: Opening(self._as_coroutine(value)(*args, **kwargs))
        if inspect.iscoroutinefunction(original):
            return self._as_coroutine(value)
        return lambda *args, **kwargs: self._wrap(value(*args, **kwargs))

    def _as_coroutine(self, call: Callable[..., object]) -> Callable[..., Any]:
        async def in_thread(*args: object, **kwargs: object) -> object:
            return self._wrap(await self._run_in_thread(lambda: call(*args, **kwargs)))

        return in_thread

    def _wrap(self, value: object) -> object:
        if type(value) in _ASYNC:
            return AsyncOverSync(value, self._threads)
        if isinstance(value, list) and value and type(value[0]) in _ASYNC:
            return [AsyncOverSync(item, self._threads) for item in value]
        if isinstance(value, Iterator):
            return self._as_async_iterator(value)
        if isinstance(value, AbstractContextManager):
            return AsyncOverSync(value, self._threads)
        return value

    async def _as_async_iterator(self, iterator: Iterator[object]) -> AsyncIterator[object]:
        try:
            while (item := await self._run_in_thread(lambda: next(iterator, _END))) is not _END:
                yield self._wrap(item)
        finally:
            if inspect.isgenerator(iterator):
                await self._run_in_thread(iterator.close)

    async def _run_in_thread(self, call: Callable[[], object]) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def __aenter__(self) -> Any:
        entered = await self._run_in_thread(self._sync_object.__enter__)  # type: ignore[attr-defined]
        return self if entered is self._sync_object else self._wrap(entered)

    async def __aexit__(self, *error: object) -> object:
        call = self._sync_object.__exit__  # type: ignore[attr-defined]
        return await self._run_in_thread(lambda: call(*error))
