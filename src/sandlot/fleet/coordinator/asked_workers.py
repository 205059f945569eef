"""Asks all workers of a fleet the same, within a bound, and goes on without those that do not answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import structlog

from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import SandlotError, Unavailable, Unsupported
from sandlot.domain.history.positions import worker_tag
from sandlot.fleet.coordinator.worker_links import WorkerLink, WorkerLinks
from sandlot.fleet.directory import rules
from sandlot.fleet.directory.contract import Directory, WorkerRef, WorkerState

log = structlog.get_logger("sandlot.coordinator")

T = TypeVar("T")

# Workers that one question goes to at the same time.
AT_ONCE: Final = 16
# Seconds for one worker to answer, and for all of them. Those that take longer are named as missing.
WORKER_WITHIN_S: Final = 3.0
ALL_WITHIN_S: Final = 10.0
# How long the list of workers is used.
FRESH_S: Final = 1.0
# Workers together return this many times as many entries as a page has, and at least so many each. Then a
# page of a large fleet has fewer entries than asked for, but its memory is bounded.
SURPLUS: Final = 4
LEAST_EACH: Final = 10


def share_of(limit: int, workers: Sequence[WorkerRef]) -> int:
    """How many entries of a page each worker is asked for."""
    return min(limit, max(LEAST_EACH, SURPLUS * limit // max(1, len(workers))))


class AskedWorkers:
    def __init__(self, directory: Directory, links: WorkerLinks) -> None:
        self._directory = directory
        self._links = links
        self._workers: Sequence[WorkerRef] = ()
        self._listed_at = float("-inf")

    async def all(self) -> Sequence[WorkerRef]:
        if time.monotonic() - self._listed_at >= FRESH_S:
            try:
                self._workers = [status.ref for status in await self._directory.workers()]
            except Unavailable:
                # While the directory is down, the workers that were known answer.
                if not self._workers:
                    raise
            self._listed_at = time.monotonic()
        return self._workers

    async def with_session(self, session_id: str) -> Sequence[WorkerRef]:
        """The session's worker, and then those that may have had it before."""
        found = None
        with contextlib.suppress(Unavailable):
            found = await self._directory.find(session_id)
        # A session that still has its first sandbox has been on no other worker.
        if found is not None and found.session.generation == 1:
            return [found.worker]
        workers = await self.all()
        if found is None:
            return workers
        return [found.worker, *(worker for worker in workers if worker.id != found.worker.id)]

    async def tagged(self, tag: str) -> WorkerRef | None:
        """The worker with this tag (``worker_tag``). None: the fleet has none."""
        for worker in await self.all():
            if worker_tag(worker.id) == tag:
                return worker
        self._listed_at = float("-inf")  # it may have joined since
        for worker in await self.all():
            if worker_tag(worker.id) == tag:
                return worker
        if not (await self._directory.status()).settled:
            raise rules.unsettled(1.0)
        return None

    async def stand_in(self, tenant: str) -> WorkerRef | None:
        """The worker that answers for those that are gone: for a tenant the same one while it is there."""
        alive = [worker for worker in await self.all() if worker.state is WorkerState.ALIVE]
        return min(alive, key=lambda worker: worker_tag(f"{worker.id} {tenant}"), default=None)

    async def ask(
        self,
        workers: Sequence[WorkerRef],
        principal: Principal,
        question: Callable[[WorkerLink], Awaitable[T]],
    ) -> dict[str, T | None]:
        """Each worker's answer in the caller's name, by the worker's id. None: it did not answer.

        Raises ``Unsupported`` if all workers that were asked do.
        """
        slots = asyncio.Semaphore(AT_ONCE)
        answers: dict[str, T | None] = dict.fromkeys(worker.id for worker in workers)
        refusals: list[Unsupported] = []

        async def ask(worker: WorkerRef) -> None:
            async with slots:
                try:
                    async with asyncio.timeout(WORKER_WITHIN_S):
                        answers[worker.id] = await question(await self._links.to(worker, principal))
                except Unsupported as error:
                    refusals.append(error)
                except (SandlotError, TimeoutError) as error:
                    log.info("a worker's answer is missing", worker=worker.id, error=str(error))

        # One that is gone is named as missing without being asked: it would only cost time.
        asking = [
            asyncio.create_task(ask(worker)) for worker in workers if worker.state is not WorkerState.GONE
        ]
        try:
            if asking:
                await asyncio.wait(asking, timeout=ALL_WITHIN_S)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        if refusals and len(refusals) == len(asking):
            raise refusals[0]
        return answers
