"""Sandboxes that are made for one request, because no warm one can get its limits or its files.

These requests wait as all others do: tenants take turns, and the queue has a length and a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from sandlot.domain.environment import Environment
from sandlot.domain.errors import EngineProblem, NotFound, SandlotError, Unavailable
from sandlot.providers.base import Sandbox
from sandlot.worker.options import WorkerOptions
from sandlot.worker.pool.fair_queue import FairQueue
from sandlot.worker.refusals import stopping

log = structlog.get_logger("sandlot.pool")

Make = Callable[[Environment, str | None], Awaitable[Sandbox]]
Prepare = Callable[[Environment], Awaitable[None]]


async def _nothing(_: Environment) -> None:
    pass


class OneOffSandboxes:
    """Makes sandboxes on request.

    ``slots`` limits how many are made at once, here and in the pools. ``prepare`` is called before, without a
    turn: it may take minutes.
    """

    def __init__(
        self,
        options: WorkerOptions,
        *,
        make: Make,
        slots: asyncio.Semaphore,
        prepare: Prepare = _nothing,
    ) -> None:
        self._options = options
        self._make = make
        self._slots = slots
        self._prepare = prepare
        self._preparing = 0
        self._queue: FairQueue[None] = FairQueue()  # requests wait only for their turn
        self._serving = 0
        self._closed = False

    async def claim(self, tenant: str, environment: Environment, workspace: str | None = None) -> Sandbox:
        """Make a sandbox of this environment, with its limits and perhaps an existing workspace.

        ``Unavailable`` after the queue's deadline.
        """
        if self._closed:
            raise stopping()
        if len(self._queue) + self._preparing >= self._options.max_waiting:
            raise self._retry_later("Too many requests for a sandbox of their own are waiting")
        try:
            async with asyncio.timeout(self._options.queue_timeout_s):
                if workspace is None:
                    await self._prepared(environment)
                return await self._claim(tenant, environment, workspace)
        except TimeoutError:
            seconds = self._options.queue_timeout_s
            raise self._retry_later(f"No sandbox could be created within {seconds:g} s") from None

    async def _prepared(self, environment: Environment) -> None:
        self._preparing += 1
        try:
            await self._prepare(environment)
        except Unavailable:
            raise  # it says why, as that the server is stopping
        except SandlotError as error:
            raise self._broken_error(environment, error) from error
        finally:
            self._preparing -= 1

    async def _claim(self, tenant: str, environment: Environment, workspace: str | None) -> Sandbox:
        if self._closed:
            raise stopping()
        turn = self._queue.join(tenant)
        self._serve_next()
        try:
            await turn
            return await self._make_in_slot(environment, workspace)
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

    async def _make_in_slot(self, environment: Environment, workspace: str | None) -> Sandbox:
        try:
            async with self._slots:
                return await self._make(environment, workspace)
        except SandlotError as error:
            if workspace is not None and isinstance(error, NotFound):
                raise  # the files are gone
            raise self._broken_error(environment, error) from error
        except Exception as error:
            raise self._broken_error(environment, EngineProblem(repr(error), retryable=True)) from error

    def _broken_error(self, environment: Environment, error: SandlotError) -> Unavailable:
        log.warning("cannot create a sandbox", environment=environment.name, error=error.message)
        return Unavailable(
            f"Cannot create a sandbox for this session in environment {environment.name}: {error.message}",
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
