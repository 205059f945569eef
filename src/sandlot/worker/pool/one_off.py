"""Sandboxes that are made for one request, because its limits cannot be changed after creation.

These requests wait as all others do: tenants take turns, and the queue has a length and a deadline.
"""

from __future__ import annotations

import asyncio

import structlog

from sandlot.domain.environment import Environment
from sandlot.domain.errors import EngineProblem, SandlotError, Unavailable
from sandlot.providers.base import Sandbox
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool.fair_queue import FairQueue
from sandlot.worker.pool.warm_pool import Make
from sandlot.worker.refusals import stopping

log = structlog.get_logger("sandlot.pool")


class OneOffSandboxes:
    """Makes sandboxes on request.

    ``slots`` limits how many are made at once, here and in the pools.
    """

    def __init__(self, options: WorkerOptions, *, make: Make, slots: asyncio.Semaphore) -> None:
        self._options = options
        self._make = make
        self._slots = slots
        self._queue: FairQueue[None] = FairQueue()  # requests wait only for their turn
        self._serving = 0
        self._closed = False

    async def claim(self, tenant: str, environment: Environment) -> Sandbox:
        """Make a sandbox of this environment, with its limits.

        ``Unavailable`` after the queue's deadline.
        """
        if self._closed:
            raise stopping()
        if len(self._queue) >= self._options.max_waiting:
            raise self._retry_later("Too many requests for a sandbox with custom limits are waiting")
        turn = self._queue.join(tenant)
        self._serve_next()
        try:
            async with asyncio.timeout(self._options.queue_timeout_s):
                await turn
                return await self._make_in_slot(environment)
        except TimeoutError:
            seconds = self._options.queue_timeout_s
            raise self._retry_later(f"No sandbox could be created within {seconds:g} s") from None
        finally:
            self._queue.leave(tenant, turn)
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._serving -= 1
            self._serve_next()

    def _serve_next(self) -> None:
        """Give out as many turns as sandboxes can be made at once. So a request that has its turn
        competes for a slot with the pools only.
        """
        while self._serving < self._options.create_concurrency and self._queue.serve(None):
            self._serving += 1

    async def _make_in_slot(self, environment: Environment) -> Sandbox:
        try:
            async with self._slots:
                return await self._make(environment)
        except SandlotError as error:
            raise self._broken_error(environment, error) from error
        except Exception as error:
            raise self._broken_error(environment, EngineProblem(repr(error), retryable=True)) from error

    def _broken_error(self, environment: Environment, error: SandlotError) -> Unavailable:
        log.warning("cannot create a sandbox", environment=environment.name, error=error.message)
        return Unavailable(
            f"Cannot create a sandbox with these limits for environment {environment.name}: {error.message}",
            retryable=error.retryable,
            retry_after_s=5.0,
            details={"reason": "environment_broken", "cause": error.code},
        )

    def close(self) -> None:
        """Fail the requests that wait for a turn. Sandboxes that are being made are finished."""
        self._closed = True
        self._queue.fail(stopping())

    def _retry_later(self, why: str) -> Unavailable:
        return Unavailable(f"{why}. Retry later.", retry_after_s=5.0, details={"reason": "queue"})
