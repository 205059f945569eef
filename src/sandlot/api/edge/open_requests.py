"""Requests in progress, by the key of their caller, so that they can be ended with their key."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from sandlot.domain.callers.principal import Principal


class OpenRequests:
    def __init__(self) -> None:
        self._tasks: dict[str, set[asyncio.Task[Any]]] = {}
        self._cancelled: dict[asyncio.Task[Any], int] = {}  # how often each was cancelled here

    @contextmanager
    def registered(self, principal: Principal) -> Iterator[None]:
        """Keep the current task under its caller's key. A caller without a key of its own cannot lose it."""
        task = asyncio.current_task()
        if not principal.key_id or task is None:
            yield
            return
        tasks = self._tasks.setdefault(principal.key_id, set())
        tasks.add(task)
        try:
            yield
        finally:
            self._cancelled.pop(task, None)
            tasks.discard(task)
            if not tasks and self._tasks.get(principal.key_id) is tasks:
                del self._tasks[principal.key_id]

    def end(self, key_ids: Collection[str]) -> None:
        """Cancel all requests of these keys, except for the one that calls this: it ends its own key.

        Call it again later: a call that is just ending may swallow a cancellation.
        """
        current = asyncio.current_task()
        for key_id in key_ids:
            for task in list(self._tasks.get(key_id, ())):
                if task is not current:
                    self._cancelled[task] = self._cancelled.get(task, 0) + 1
                    task.cancel()

    def take_end(self, principal: Principal) -> bool:
        """Whether the current task was cancelled by ``end``, and by nobody else.

        If so, its cancellation is over, and it is not cancelled again.
        """
        task = asyncio.current_task()
        if task is None or task not in self._cancelled:
            return False
        left = 0
        for _ in range(self._cancelled.pop(task)):
            left = task.uncancel()
        self._tasks.get(principal.key_id, set()).discard(task)
        return left == 0
