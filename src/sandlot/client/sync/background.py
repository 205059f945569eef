"""An event loop in a thread of its own, and the way from plain calls into it.

So a blocking call works anywhere, also on the thread of a running event loop. The thread is a daemon and is
stopped at the latest when the interpreter ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(self._loop,), name="sandlot", daemon=True)
        thread.start()
        self._stop = weakref.finalize(self, _stop, self._loop, thread, self._pid)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._pid != os.getpid():
            self._start()  # a fork takes no thread along; connections are made anew for the new loop
        if not self.alive:
            coroutine.close()
            raise RuntimeError("this client is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
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
            if aclose is not None and self.alive:
                self.run(aclose())

    @contextlib.contextmanager
    def enter(self, context: AbstractAsyncContextManager[AsyncIterator[T]]) -> Iterator[Iterator[T]]:
        events = self.run(context.__aenter__())
        try:
            yield self.iterate(events)
        finally:
            self.run(context.__aexit__(None, None, None))

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


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int) -> None:
    if pid != os.getpid():
        return  # of a parent, whose loop is not ours to touch
    loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(timeout=10)
