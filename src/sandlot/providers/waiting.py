"""Waits for work that must not be abandoned half-way, and for work that several callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from sandlot.domain.errors import EngineProblem

T = TypeVar("T")


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Runs work to its end even if the caller is cancelled, and only then raises the cancellation.

    For work that creates something: if it were abandoned half-way, the engine could still create
    the thing after the caller has cleaned up. The work has its own deadline.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the caller gets the cancellation instead
        raise


async def wait_shared(task: asyncio.Task[T]) -> T:
    """Waits for work that several callers share. A cancelled caller does not cancel the work.

    If the work itself is cancelled because its owner closes, the callers get an error. They are not
    cancelled themselves.
    """
    # If no caller waits any more, this stops asyncio from logging the failure.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if task.cancelled() and not (caller and caller.cancelling()):
            raise EngineProblem(f"{task.get_name()}: the worker is shutting down.") from None
        raise
