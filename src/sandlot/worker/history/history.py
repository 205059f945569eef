"""``History``: what a worker records, and where it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from sandlot.domain.callers.principal import Principal
from sandlot.domain.callers.slots import UNCOUNTED, ExecSlots
from sandlot.domain.errors import Unavailable, Unsupported
from sandlot.domain.history.events import Event, EventKind
from sandlot.domain.history.positions import EventTimes, Position, worker_tag
from sandlot.domain.history.query import EventPage, EventQuery, HistoryFigures
from sandlot.domain.history.recorder import Recorder, Subject
from sandlot.domain.metrics.figures import Figures
from sandlot.domain.metrics.table import SANDBOXES_LOST, SESSIONS_ENDED
from sandlot.domain.session import Session
from sandlot.providers.base import Sandbox
from sandlot.worker.history.exec_ends import ExecEnds
from sandlot.worker.history.export import exporter_for
from sandlot.worker.history.loss_causes import cause_of
from sandlot.worker.history.options import HistoryOptions
from sandlot.worker.history.store import HistoryStore
from sandlot.worker.history.writer import HistoryReader, HistoryWriter
from sandlot.worker.recordings.recordings import Recordings
from sandlot.worker.sessions.live_session import LiveSession

# The least time between two looks for one follower, however many events there are.
FOLLOW_PAUSE_S: Final = 0.1


class History:
    """Open it before anything is recorded. ``recorder`` records; ``execs`` sees the ends of commands.

    ``recordings`` has what commands wrote, of sessions that asked for it. They do not need a history.
    """

    def __init__(
        self,
        folder: Path,
        worker_id: str,
        options: HistoryOptions,
        recordings: Recordings,
        slots: ExecSlots = UNCOUNTED,
        figures: Figures | None = None,
    ) -> None:
        self._options = options
        self.recordings = recordings
        tag = worker_tag(worker_id)
        self._store = HistoryStore(folder, tag)
        exporter = None if options.export is None else exporter_for(options, options.export, worker_id)
        self._writer = HistoryWriter(self._store, options, on_drop=self._record_drop, exporter=exporter)
        self.recorder = Recorder(
            self._writer.put,
            tag,
            commands=options.commands,
            secrets=options.secrets,
            on=options.enabled,
        )
        self._figures = figures or Figures()
        self.execs = ExecEnds(self.recorder, slots, self._figures)
        self._closed = False

    async def open(self) -> None:
        await self.recordings.open()
        if self.recorder.on:
            await self._store.open()
            state = await self._store.state()
            self.recorder.times = EventTimes(state.last_us)
            self.recorder.digest_key = state.digest_key
            self._writer.start()

    async def close(self) -> None:
        self._closed = True
        await self.execs.close()
        await self.recordings.close()
        await self._writer.close()
        await self._store.close()

    def _record_drop(self, tenant: str, count: int) -> None:
        self.recorder.record(EventKind.HISTORY_DROPPED, details={"events": count}, tenant=tenant)

    @property
    def lag_s(self) -> float:
        """How long the oldest event that is not on disk has waited."""
        return self._writer.lag_s

    @property
    def figures(self) -> HistoryFigures | None:
        if not self.recorder.on:
            return None
        return HistoryFigures(self._writer.recorded, self._writer.dropped, self._writer.used_bytes)

    # --- sessions -----------------------------------------------------------------------------

    def claimed(self, live_session: LiveSession) -> None:
        self.recorder.session_claimed(live_session.session)
        self.recordings.claimed(live_session)

    def lost(self, session: Session) -> None:
        self.recordings.left(session, "the sandbox was lost")
        self.recorder.session_lost(session)
        if session.loss is not None:
            self._figures.count(SANDBOXES_LOST, cause_of(session.loss.reason))
        self.execs.all_unseen(session.id, "the sandbox was lost")

    def replaced(self, session: Session) -> None:
        """The session's sandbox is about to be replaced on request."""
        self.recordings.left(session, "the sandbox was replaced")
        self.execs.all_unseen(session.id, "the sandbox was replaced")

    def hibernated(self, session: Session) -> None:
        self.recordings.left(session, "the session hibernated")
        self.execs.all_unseen(session.id, "the session hibernated")
        self.recorder.session_hibernated(session)

    def ended(self, session: Session) -> None:
        self.recordings.left(session, "the session ended")
        self.execs.all_unseen(session.id, "the session ended")
        self.recorder.session_ended(session)
        if session.end_reason is not None:
            self._figures.count(SESSIONS_ENDED, session.end_reason.value)

    async def resume(self, session: Session) -> None:
        """Find the commands that an earlier process has started in this session."""
        if self.recorder.on:
            started: Mapping[str, Subject] = await self._store.open_execs(session.tenant, session.id)
            self.execs.resume(session.id, started)

    def adopted(self, live_session: LiveSession, sandbox: Sandbox) -> None:
        self.execs.follow_all(live_session, sandbox)

    # --- reading ------------------------------------------------------------------------------

    async def page(self, principal: Principal, query: EventQuery) -> EventPage:
        """The caller's events. Everything that was recorded before the call is in it."""
        tenant = query.tenant_for(principal)
        if not self.recorder.on:
            raise Unsupported("This server keeps no history. The operator can set SANDLOT_HISTORY=true.")
        clock = asyncio.get_running_loop().time
        deadline = clock() + query.wait_s
        while True:
            news = self._writer.news(tenant)  # before reading, so that no event is missed
            await self._writer.flush()
            if self._closed:
                raise Unavailable("The server is shutting down. Retry.", retry_after_s=1.0)
            page = await self._store.page(tenant, query)
            left_s = deadline - clock()
            if page.events or page.more or left_s <= 0 or query.is_over(self.recorder.clock()):
                return page
            try:
                async with asyncio.timeout(left_s):
                    await news.wait()
                    await asyncio.sleep(FOLLOW_PAUSE_S)
            except TimeoutError:
                return page
            query = replace(query, after=page.next)

    # --- reading on behalf of the server ------------------------------------------------------

    @property
    def newest_us(self) -> int:
        """The time of the newest event. Later ones have later times."""
        return self.recorder.times.last_us

    def read_by(self, reader: HistoryReader | None, read_us: int = 0) -> None:
        """Tell ``reader`` what is written and deleted from now on.

        ``read_us``: the last time that it has read. New events are later than that, even if a crash of the
        machine has lost the newest events and its clock went back.
        """
        self._writer.reader = reader
        self.recorder.times.last_us = max(self.recorder.times.last_us, read_us)

    async def next_event(self, tenant: str, kinds: tuple[EventKind, ...], after_us: int) -> Event | None:
        """The tenant's first event after a time, of these kinds, that is on disk."""
        if not kinds:
            return None
        page = await self._store.page(tenant, EventQuery(kinds=kinds, after=str(Position(after_us)), limit=1))
        return page.events[0] if page.events else None
