"""Runs an event loop in its own thread, so that blocking code can call async code.

Blocking calls therefore work anywhere, also on the thread of a running event loop. The thread is a
daemon and stops at the latest when the interpreter exits. Before that, the loop runs a cleanup.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import concurrent.futures.thread  # imported before our hook below, so that ours runs before its own
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

CLEANUP_S: Final = 8.0  # time limit of the cleanup
STOP_S: Final = 10.0  # how long to wait for the thread to stop

T = TypeVar("T")
Cleanup = Callable[[], Coroutine[Any, Any, None]]
Calls = weakref.WeakSet[Any]  # the coroutines that callers outside the loop wait for


class BackgroundLoop:
    """An event loop in its own thread, with blocking methods to run coroutines on it."""

    def __init__(self, cleanup: Cleanup | None = None) -> None:
        """``cleanup`` runs before the loop stops.

        It must not refer to this object, or the object would never be garbage-collected.
        """
        self._created_in_pid = os.getpid()
        self._start(cleanup)
        _loops.add(self)

    def _start(self, cleanup: Cleanup | None) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls = Calls()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="sandlot", daemon=True)
        self._thread.start()
        pid = os.getpid()
        self._stop = weakref.finalize(self, _stop, self._loop, self._thread, pid, self._calls, cleanup)
        # Set last: another thread that finds its own pid here uses the other attributes.
        self._pid = pid

    def _start_after_fork(self) -> None:
        """Start a new loop: a fork does not copy threads. Connections are recreated for it."""
        with _start_lock:
            if self._pid != os.getpid() and self.alive:
                self._start(None)  # the cleanup is the parent's job

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop without waiting for it."""
        if self._pid != os.getpid():
            self._start_after_fork()
        if not self.alive:
            coroutine.close()
            raise RuntimeError("This client is closed. Create a new one.")
        self._calls.add(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        if self._on_own_thread:
            coroutine.close()
            raise RuntimeError(
                "A blocking call from the client's own event loop would deadlock. Use AsyncClient."
            )
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupted caller cancels its call; no effect if it is done
            raise

    def iterate(self, events: AsyncIterator[T]) -> Generator[T, None, None]:
        """Iterate over an async iterator with a plain ``for``."""
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
        """Enter an async context with a plain ``with``."""
        pid = os.getpid()
        events = self.run(context.__aenter__())
        try:
            yield self.iterate(events)
        finally:
            self._finish(lambda: context.__aexit__(None, None, None), pid)

    def _finish(self, finish: Callable[[], Coroutine[Any, Any, Any]], pid: int) -> None:
        """Clean up after an iterator. The garbage collector may trigger this, on any thread."""
        if not self.alive or pid != os.getpid():  # after a fork, the connection is the parent's
            return
        if self._on_own_thread:
            # Waiting for it here would never end.
            asyncio.run_coroutine_threadsafe(finish(), self._loop)
        else:
            self.run(finish())

    @property
    def _on_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    @property
    def forked(self) -> bool:
        """Whether a fork copied this object. Then everything open belongs to the parent."""
        return self._created_in_pid != os.getpid()

    @property
    def alive(self) -> bool:
        """Whether the loop has not been closed."""
        return self._stop.alive

    def close(self) -> None:
        """Cancel running calls, run the cleanup and stop the thread."""
        self._stop()
        if self._pid == os.getpid() and not self._on_own_thread:
            self._thread.join(timeout=STOP_S)
            _stopping.discard(self._thread)


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
        _stopping.discard(threading.current_thread())


def _stop(
    loop: asyncio.AbstractEventLoop,
    thread: threading.Thread,
    pid: int,
    calls: Calls,
    cleanup: Cleanup | None,
) -> None:
    """Start the shutdown without waiting for it.

    The garbage collector may call this on any thread, including that of an event loop.
    """
    if pid != os.getpid():
        return  # the loop belongs to the parent process
    _stopping.add(thread)
    asyncio.run_coroutine_threadsafe(_shut_down(loop, calls, cleanup), loop)


async def _shut_down(loop: asyncio.AbstractEventLoop, calls: Calls, cleanup: Cleanup | None) -> None:
    try:
        with contextlib.suppress(Exception):  # there is no caller left to report to
            async with asyncio.timeout(CLEANUP_S):
                await _cancel_calls(calls)
                if cleanup is not None:
                    await cleanup()
    finally:
        loop.stop()


async def _cancel_calls(calls: Calls) -> None:
    """Cancel the running calls while the connections still work.

    A cancelled call may need them, for example to end its command. Only calls are cancelled: they
    may await other tasks, such as one that is connecting.
    """
    cancelled = [task for task in asyncio.all_tasks() if task.get_coro() in calls]
    for task in cancelled:
        if not task.cancelling():  # a second cancel would interrupt its handling of the first
            task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)


_loops: weakref.WeakSet[BackgroundLoop] = weakref.WeakSet()
_stopping: set[threading.Thread] = set()  # told to stop; perhaps no caller waits for them
_start_lock = threading.Lock()


def _stop_all() -> None:
    for loop in list(_loops):
        loop.close()
    for thread in list(_stopping):
        thread.join(timeout=STOP_S)


def _after_fork() -> None:
    """Forget the parent's threads: none of them exists here to stop or to release a lock."""
    global _start_lock
    _start_lock = threading.Lock()
    _stopping.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)

# Not ``atexit``: by then executors accept no more work, and closing a local client needs one.
threading._register_atexit(_stop_all)  # type: ignore[attr-defined]  # noqa: SLF001
