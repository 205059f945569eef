"""Sends and fetches in a few threads, with a bound on what waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """The save or load was cancelled."""


class Transfers:
    """``stopped``: set it from any thread, and the work ends at its next step."""

    def __init__(self, threads: ThreadPoolExecutor, at_once: int) -> None:
        self.stopped = threading.Event()
        self.at_once = at_once
        self._threads = threads
        self._room = threading.Semaphore(2 * at_once)
        self._running: set[Future[None]] = set()
        self._failure: BaseException | None = None

    def check(self) -> None:
        """Raise if the work was stopped, or a transfer has failed."""
        if self.stopped.is_set():
            raise Stopped
        if self._failure is not None:
            raise self._failure

    def send(self, work: Callable[[], None]) -> None:
        """Run it in a thread; wait first if too much is on its way."""
        self._room.acquire()
        try:
            self.check()
            running = self._threads.submit(work)
        except BaseException:
            self._room.release()
            raise
        self._running.add(running)
        running.add_done_callback(self._sent)

    def fetch(self, work: Callable[[], T]) -> Future[T]:
        """The caller bounds how many there are."""
        self.check()
        return self._threads.submit(work)

    def finish(self) -> None:
        """Wait for everything that is on its way."""
        for running in list(self._running):
            running.exception()
        self.check()

    def abandon(self) -> None:
        """Wait for what cannot be stopped any more, after a failure."""
        self.stopped.set()
        for running in list(self._running):
            running.cancel()
            if not running.cancelled():
                running.exception()

    def _sent(self, running: Future[None]) -> None:
        self._room.release()
        self._running.discard(running)
        if not running.cancelled() and (failure := running.exception()) is not None:
            self._failure = failure
