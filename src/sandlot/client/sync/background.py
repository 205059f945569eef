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
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

LAST_S: Final = 8.0  # for the last thing
STOP_S: Final = 10.0  # until the thread is left to itself

T = TypeVar("T")
Last = Callable[[], Coroutine[Any, Any, None]]
Calls = weakref.WeakSet[Any]  # the coroutines that somebody outside waits for


class BackgroundLoop:
    def __init__(self, last: Last | None = None) -> None:
        """``last`` is run before the loop stops. It must not hold this object, or that would never end."""
        self._made_in = os.getpid()
        self._start(last)
        _running.add(self)

    def _start(self, last: Last | None) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls = Calls()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="sandlot", daemon=True)
        self._thread.start()
        pid = os.getpid()
        self._stop = weakref.finalize(self, _stop, self._loop, self._thread, pid, self._calls, last)
        self._pid = pid  # the last of all: who finds it to be his own uses the others

    def _start_after_fork(self) -> None:
        """A fork takes no thread along; connections are made anew for the new loop."""
        with _starting:
            if self._pid != os.getpid() and self.alive:
                self._start(None)  # the last thing is the parent's to do

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begins it, and waits for nothing."""
        if self._pid != os.getpid():
            self._start_after_fork()
        if not self.alive:
            coroutine.close()
            raise RuntimeError("this client is closed")
        self._calls.add(coroutine)
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

    def iterate(self, events: AsyncIterator[T]) -> Generator[T, None, None]:
        pid = os.getpid()
        try:
            while True:
                try:
                    event = self.run(_next(events))
                except StopAsyncIteration:
                    return
                yield event
        finally:
            self._finish(lambda: _close(events), pid)

    @contextlib.contextmanager
    def enter(self, context: AbstractAsyncContextManager[AsyncIterator[T]]) -> Iterator[Iterator[T]]:
        pid = os.getpid()
        events = self.run(context.__aenter__())
        try:
            yield self.iterate(events)
        finally:
            self._finish(lambda: context.__aexit__(None, None, None), pid)

    def _finish(self, finish: Callable[[], Coroutine[Any, Any, Any]], pid: int) -> None:
        """Of an iterator that is left. The garbage collector may be who leaves it, on any thread."""
        if not self.alive or pid != os.getpid():  # a parent reads on, on a connection that is not ours
            return
        if self._on_own_thread:
            asyncio.run_coroutine_threadsafe(finish(), self._loop)  # to wait for it here would be for ever
        else:
            self.run(finish())

    @property
    def _on_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    @property
    def forked(self) -> bool:
        """This is another process than it was made in. What was opened before is still the parent's."""
        return self._made_in != os.getpid()

    @property
    def alive(self) -> bool:
        return self._stop.alive

    def close(self) -> None:
        self._stop()
        if self._pid == os.getpid() and not self._on_own_thread:
            self._thread.join(timeout=STOP_S)
            _ending.discard(self._thread)


async def _next(events: AsyncIterator[T]) -> T:
    return await anext(events)


async def _close(events: AsyncIterator[Any]) -> None:
    if isinstance(events, AsyncGenerator):
        await events.aclose()


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
        _ending.discard(threading.current_thread())


def _stop(
    loop: asyncio.AbstractEventLoop,
    thread: threading.Thread,
    pid: int,
    calls: Calls,
    last: Last | None,
) -> None:
    """Waits for nothing: the garbage collector may call this on any thread, an event loop's among them."""
    if pid != os.getpid():
        return  # of a parent, whose loop is not ours to touch
    _ending.add(thread)
    asyncio.run_coroutine_threadsafe(_end(loop, calls, last), loop)


async def _end(loop: asyncio.AbstractEventLoop, calls: Calls, last: Last | None) -> None:
    try:
        with contextlib.suppress(Exception):  # there is nobody left to tell
            async with asyncio.timeout(LAST_S):
                await _end_calls(calls)
                if last is not None:
                    await last()
    finally:
        loop.stop()


async def _end_calls(calls: Calls) -> None:
    """What a call does about its cancellation, such as ending its command, needs the connections still.

    Calls alone are cancelled: what they await may have tasks of its own, such as one that is connecting.
    """
    ending = [task for task in asyncio.all_tasks() if task.get_coro() in calls]
    for task in ending:
        if not task.cancelling():  # again would cancel just that
            task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


_running: weakref.WeakSet[BackgroundLoop] = weakref.WeakSet()
_ending: set[threading.Thread] = set()  # told to, and perhaps waited for by nobody
_starting = threading.Lock()


def _stop_all() -> None:
    for loop in list(_running):
        loop.close()
    for thread in list(_ending):
        thread.join(timeout=STOP_S)


def _after_fork() -> None:
    """Threads of the parent are not here to end, nor to let go of a lock."""
    global _starting
    _starting = threading.Lock()
    _ending.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)

# When ``atexit`` is reached, no executor takes work any more, and closing a local client needs some.
threading._register_atexit(_stop_all)  # type: ignore[attr-defined]  # noqa: SLF001
