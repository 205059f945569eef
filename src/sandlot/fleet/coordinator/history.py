"""A fleet's history: each worker keeps its own, and the coordinator asks them all for a page."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import structlog

from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import NotFound, SandlotError, Unavailable, Unsupported
from sandlot.domain.history.merging import merged
from sandlot.domain.history.query import EventPage, EventQuery
from sandlot.domain.ids import is_session_id
from sandlot.domain.session_states import no_session_error
from sandlot.fleet.coordinator.worker_links import WorkerLinks
from sandlot.fleet.directory.contract import Directory, WorkerRef, WorkerState

log = structlog.get_logger("sandlot.coordinator")

# Workers that one query asks at the same time.
AT_ONCE: Final = 16
# Seconds for one worker to answer, and for all of them. Those that take longer are named as missing.
WORKER_WITHIN_S: Final = 3.0
ALL_WITHIN_S: Final = 10.0
# Workers together return this many times as many events as a page has, and at least so many each. Then a page
# of a large fleet has fewer events than asked for, but its memory is bounded.
SURPLUS: Final = 4
LEAST_EACH: Final = 10
# Seconds for a worker to begin to send a recording.
RECORDING_WITHIN_S: Final = 10.0
# A follower's look at the fleet costs one call for each worker. So it looks less often in a large fleet.
LOOK_EVERY_S: Final = 1.0
LOOKS_PER_S: Final = 50
# How long the list of workers is used.
FRESH_S: Final = 1.0


class FleetHistory:
    def __init__(self, directory: Directory, links: WorkerLinks) -> None:
        self._directory = directory
        self._links = links
        self._workers: Sequence[WorkerRef] = ()
        self._listed_at = float("-inf")

    async def page(self, principal: Principal, query: EventQuery) -> EventPage:
        query.tenant_for(principal)
        clock = asyncio.get_running_loop().time
        deadline = clock() + query.wait_s
        while True:
            workers = await self._workers_for(query)
            page = await self._ask(workers, principal, replace(query, wait_s=0))
            left_s = deadline - clock()
            if page.events or page.more or left_s <= 0 or query.is_over(time.time()):
                return page
            await asyncio.sleep(min(left_s, max(LOOK_EVERY_S, len(workers) / LOOKS_PER_S)))
            query = replace(query, after=page.next)

    async def recording(self, principal: Principal, session_id: str) -> AsyncGenerator[bytes, None]:
        """A session's recording, from the worker that has it. A session that has moved has one on each of
        its workers; the last one's comes first.
        """
        if not is_session_id(session_id):
            raise no_session_error(session_id)
        error: SandlotError = no_session_error(session_id)
        for worker in await self._workers_with(session_id):
            if worker.state is WorkerState.GONE:
                error = _gone(worker)
                continue
            link = await self._links.to(worker, principal)
            async with aclosing(link.read_recording(session_id)) as pieces:
                try:
                    async with asyncio.timeout(RECORDING_WITHIN_S):
                        first = await anext(pieces, b"")
                except NotFound as missing:
                    error = missing if isinstance(error, NotFound) else error
                    continue
                except (SandlotError, TimeoutError) as problem:
                    log.info("a worker's recording is missing", worker=worker.id, error=str(problem))
                    error = _gone(worker)
                    continue
                yield first
                async for piece in pieces:
                    yield piece
                return
        raise error

    async def _workers_with(self, session_id: str) -> Sequence[WorkerRef]:
        """The session's worker, and then those that may have had it before."""
        found = None
        with contextlib.suppress(Unavailable):
            found = await self._directory.find(session_id)
        # A session that still has its first sandbox has been on no other worker.
        if found is not None and found.session.generation == 1:
            return [found.worker]
        workers = await self._list_workers()
        if found is None:
            return workers
        return [found.worker, *(worker for worker in workers if worker.id != found.worker.id)]

    async def _workers_for(self, query: EventQuery) -> Sequence[WorkerRef]:
        """The workers that may have events that match."""
        if query.session_id is not None:
            return await self._workers_with(query.session_id)
        return await self._list_workers()

    async def _list_workers(self) -> Sequence[WorkerRef]:
        if time.monotonic() - self._listed_at >= FRESH_S:
            try:
                self._workers = [status.ref for status in await self._directory.workers()]
            except Unavailable:
                # While the directory is down, the workers that were known answer.
                if not self._workers:
                    raise
            self._listed_at = time.monotonic()
        return self._workers

    async def _ask(self, workers: Sequence[WorkerRef], principal: Principal, query: EventQuery) -> EventPage:
        each = min(query.limit, max(LEAST_EACH, SURPLUS * query.limit // max(1, len(workers))))
        slots = asyncio.Semaphore(AT_ONCE)
        pages: dict[str, EventPage | None] = dict.fromkeys(worker.id for worker in workers)
        refusals: list[Unsupported] = []

        async def ask(worker: WorkerRef) -> None:
            async with slots:
                try:
                    async with asyncio.timeout(WORKER_WITHIN_S):
                        link = await self._links.to(worker, principal)
                        pages[worker.id] = await link.list_events(replace(query, limit=each))
                except Unsupported as error:
                    refusals.append(error)
                except (SandlotError, TimeoutError) as error:
                    log.info("a worker's history is missing", worker=worker.id, error=str(error))

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
        return merged(query, pages)


def _gone(worker: WorkerRef) -> Unavailable:
    return Unavailable(
        f"Worker {worker.id}, which may have the recording, does not answer. Retry.",
        retry_after_s=5.0,
        details={"reason": "worker_unreachable", "worker_id": worker.id},
    )
