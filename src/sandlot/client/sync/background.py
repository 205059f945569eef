"""An event loop in a thread of its own, and the way from plain calls into it.

So a blocking call works anywhere, also on the thread of a running event loop. The thread is a daemon and is
stopped at the latest when the interpreter ends; before that, the loop has a last thing to do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import concurrent.futures.thread  # before our hook below, which then runs before its own
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

LAST_S: Final = 8.0  # for the last thing
STOP_S: Final = 10.0  # until the thread is left to itself

T = TypeVar("T")
Last = Callable[[], Coroutine[Any, Any, None]]


class BackgroundLoop:
    def __init__(self, last: Last | None = None) -> None:
        """``last`` is run before the loop stops. It must not hold this object, or that would never end."""
        self._start(last)
        _running.add(self)

    def _start(self, last: Last | None) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="sandlot", daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(self, _stop, self._loop, self._thread, self._pid, last)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begins it, and waits for nothing."""
        if self._pid != os.getpid():
            # A fork takes no thread along; connections are made anew for the new loop. The last thing is the
            # parent's to do.
            self._start(None)
        if not self.alive:
            coroutine.close()
            raise RuntimeError("this client is closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._on_own_thread:
            coroutine.close()
            raise RuntimeError("a blocking call from the client's own event loop would wait for itself")
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt of the caller ends the call too; one that is done is not changed
            raise

    def iterate(self, events: AsyncIterator[T]) -> Iterator[T]:
        try:
            while True:
                try:
                    event = self.run(_next(events))
                except StopAsyncIteration:
                    return
                yield event
        finally:
            aclose = getattr(events, "aclose", None)
            if aclose is not None:
                self._finish(aclose)

    @contextlib.contextmanager
    def enter(self, context: AbstractAsyncContextManager[AsyncIterator[T]]) -> Iterator[Iterator[T]]:
        events = self.run(context.__aenter__())
        try:
            yield self.iterate(events)
        finally:
            self._finish(lambda: context.__aexit__(None, None, None))

    def _finish(self, finish: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Of an iterator that is left. The garbage collector may be who leaves it, on any thread."""
        if not self.alive:
            return
        if self._on_own_thread:
            asyncio.run_coroutine_threadsafe(finish(), self._loop)  # to wait for it here would be for ever
        else:
            self.run(finish())

    @property
    def _on_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    @property
    def alive(self) -> bool:
        return self._stop.alive

    def close(self) -> None:
        self._stop()


async def _next(events: AsyncIterator[T]) -> T:
    return await anext(events)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int, last: Last | None) -> None:
    if pid != os.getpid():
        return  # of a parent, whose loop is not ours to touch
    asyncio.run_coroutine_threadsafe(_end(loop, last), loop)
    if thread is not threading.current_thread():
        thread.join(timeout=STOP_S)


async def _end(loop: asyncio.AbstractEventLoop, last: Last | None) -> None:
    try:
        if last is not None:
            with contextlib.suppress(Exception):  # there is nobody left to tell
                async with asyncio.timeout(LAST_S):
                    await last()
    finally:
        loop.stop()


_running: weakref.WeakSet[BackgroundLoop] = weakref.WeakSet()


def _stop_all() -> None:
    for loop in list(_running):
        loop.close()


# When ``atexit`` is reached, no executor takes work any more, and closing a local client needs some.
threading._register_atexit(_stop_all)  # type: ignore[attr-defined]  # noqa: SLF001
