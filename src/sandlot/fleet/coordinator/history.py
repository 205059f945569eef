"""A fleet's history: each worker keeps its own, and the coordinator asks them all for a page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import structlog

from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import NotFound, SandlotError, Unavailable
from sandlot.domain.history.merging import merged
from sandlot.domain.history.query import EventPage, EventQuery
from sandlot.domain.ids import is_session_id
from sandlot.domain.session_states import no_session_error
from sandlot.fleet.coordinator.asked_workers import AskedWorkers, share_of
from sandlot.fleet.coordinator.worker_links import WorkerLinks
from sandlot.fleet.directory.contract import WorkerRef, WorkerState

log = structlog.get_logger("sandlot.coordinator")

# Seconds for a worker to begin to send a recording.
RECORDING_WITHIN_S: Final = 10.0
# A follower's look at the fleet costs one call for each worker. So it looks less often in a large fleet.
LOOK_EVERY_S: Final = 1.0
LOOKS_PER_S: Final = 50


class FleetHistory:
    def __init__(self, links: WorkerLinks, asked: AskedWorkers) -> None:
        self._links = links
        self._asked = asked

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
        for worker in await self._asked.with_session(session_id):
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

    async def _workers_for(self, query: EventQuery) -> Sequence[WorkerRef]:
        """The workers that may have events that match."""
        if query.session_id is not None:
            return await self._asked.with_session(query.session_id)
        return await self._asked.all()

    async def _ask(self, workers: Sequence[WorkerRef], principal: Principal, query: EventQuery) -> EventPage:
        asked = replace(query, limit=share_of(query.limit, workers))
        return merged(query, await self._asked.ask(workers, principal, lambda link: link.list_events(asked)))


def _gone(worker: WorkerRef) -> Unavailable:
    return Unavailable(
        f"Worker {worker.id}, which may have the recording, does not answer. Retry.",
        retry_after_s=5.0,
        details={"reason": "worker_unreachable", "worker_id": worker.id},
    )
