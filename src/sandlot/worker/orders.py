"""Sandboxes that are made for one request, because its limits are fixed when a sandbox is made.

They wait as others do: tenants take turns, only so many wait, and not for ever.
"""

from __future__ import annotations

import asyncio

import structlog

from sandlot.domain.environment import Environment
from sandlot.domain.errors import EngineProblem, SandlotError, Unavailable
from sandlot.providers.base import Sandbox
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool import Make
from sandlot.worker.queue import FairQueue
from sandlot.worker.refusals import stopping

log = structlog.get_logger("sandlot.orders")


class Orders:
    """``slots`` bounds how many sandboxes are made at once, with those of the pools."""

    def __init__(self, options: WorkerOptions, *, make: Make, slots: asyncio.Semaphore) -> None:
        self._options = options
        self._make = make
        self._slots = slots
        self._queue: FairQueue[None] = FairQueue()  # what is waited for is one's turn
        self._serving = 0
        self._closed = False

    async def claim(self, tenant: str, environment: Environment) -> Sandbox:
        """A sandbox of this environment, with its limits. ``Unavailable`` after the queue's deadline."""
        if self._closed:
            raise stopping()
        if len(self._queue) >= self._options.max_waiting:
            raise self._come_back("too many creates with limits of their own are waiting already")
        turn = self._queue.join(tenant)
        self._serve_next()
        try:
            async with asyncio.timeout(self._options.queue_timeout_s):
                await turn
                return await self._made(environment)
        except TimeoutError:
            seconds = self._options.queue_timeout_s
            raise self._come_back(f"no sandbox could be made within {seconds:g} s") from None
        finally:
            self._queue.leave(tenant, turn)
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._serving -= 1
            self._serve_next()

    def _serve_next(self) -> None:
        """No more than can be made at once: who holds a turn waits for a slot at most beside the pools."""
        while self._serving < self._options.create_concurrency and self._queue.serve(None):
            self._serving += 1

    async def _made(self, environment: Environment) -> Sandbox:
        try:
            async with self._slots:
                return await self._make(environment)
        except SandlotError as error:
            raise self._refusal(environment, error) from error
        except Exception as error:
            raise self._refusal(environment, EngineProblem(repr(error), retryable=True)) from error

    def _refusal(self, environment: Environment, error: SandlotError) -> Unavailable:
        log.warning("sandbox could not be made", environment=environment.name, error=error.message)
        return Unavailable(
            f"environment {environment.name} cannot make a sandbox with these limits: {error.message}",
            retryable=error.retryable,
            retry_after_s=5.0,
            details={"reason": "environment_broken", "cause": error.code},
        )

    def close(self) -> None:
        """Who waits for a turn is told; what is being made comes to its end."""
        self._closed = True
        self._queue.fail(stopping())

    def _come_back(self, why: str) -> Unavailable:
        return Unavailable(f"{why}; come back later", retry_after_s=5.0, details={"reason": "queue"})
