"""``AsyncOverSync``: the sync client under the async client's names, so that one suite proves both.

Generic: which methods are awaited, iterated or entered is read off the async classes; each call runs in a thread.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Final

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_exec import AsyncExec
from sandlot.client.async_files import AsyncFiles
from sandlot.client.async_session import AsyncSession, AsyncShell
from sandlot.client.opening import Opening
from sandlot.client.sync.client import Client
from sandlot.client.sync.session import Exec, Files, Session, Shell

# Each blocked call holds one; the suite has up to this many at once.
THREADS: Final = 100
_ASYNC: Final[dict[type, type]] = {
    Client: AsyncClient,
    Session: AsyncSession,
    Exec: AsyncExec,
    Shell: AsyncShell,
    Files: AsyncFiles,
}
_OPENING: Final = (AsyncClient.create, AsyncClient.thread)
_RENAMED: Final = {"aclose": "close"}
_END: Final = object()


class AsyncOverSync:
    """``threads`` are the caller's to shut down."""

    def __init__(self, behind: object, threads: ThreadPoolExecutor) -> None:
        self._behind = behind
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._behind, _RENAMED.get(name, name))
        if not callable(value):
            return self._wrapped(value)
        original = getattr(_ASYNC[type(self._behind)], name)
        if original in _OPENING:
            return lambda *args, **kwargs: Opening(self._awaited(value)(*args, **kwargs))
        if inspect.iscoroutinefunction(original):
            return self._awaited(value)
        return lambda *args, **kwargs: self._wrapped(value(*args, **kwargs))

    def _awaited(self, call: Callable[..., object]) -> Callable[..., Any]:
        async def in_thread(*args: object, **kwargs: object) -> object:
            return self._wrapped(await self._run(lambda: call(*args, **kwargs)))

        return in_thread

    def _wrapped(self, value: object) -> object:
        if type(value) in _ASYNC:
            return AsyncOverSync(value, self._threads)
        if isinstance(value, Iterator):
            return self._iterated(value)
        if isinstance(value, AbstractContextManager):
            return AsyncOverSync(value, self._threads)
        return value

    async def _iterated(self, iterator: Iterator[object]) -> AsyncIterator[object]:
        try:
            while (item := await self._run(lambda: next(iterator, _END))) is not _END:
                yield self._wrapped(item)
        finally:
            if inspect.isgenerator(iterator):
                await self._run(iterator.close)

    async def _run(self, call: Callable[[], object]) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def __aenter__(self) -> Any:
        entered = await self._run(self._behind.__enter__)  # type: ignore[attr-defined]
        return self if entered is self._behind else self._wrapped(entered)

    async def __aexit__(self, *error: object) -> object:
        return await self._run(lambda: self._behind.__exit__(*error))  # type: ignore[attr-defined]
