"""Writes events in the background, so that no command waits for the disk.

Events wait in memory for a moment (``background_writer.GATHER_S``) and are written together. A worker that is
killed loses those of the last moment; what is written is never written again. The memory is bounded: if the
disk cannot keep up, events are dropped and counted, and how many is recorded as an event.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Final, Protocol

import structlog

from sandlot.domain.errors import StorageProblem
from sandlot.domain.history.events import SERVER_TENANT, Event
from sandlot.domain.history.positions import US
from sandlot.worker.background_writer import BackgroundWriter
from sandlot.worker.history.export import Exporter
from sandlot.worker.history.options import HistoryOptions
from sandlot.worker.history.store import HistoryStore, OldEvent, Row, row_of, size_of

log = structlog.get_logger("sandlot.history")

# After a write that failed.
RETRY_S: Final = 1.0
# Written in one transaction.
BATCH: Final = 1000
# Waiting in memory.
MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
# Seconds between two looks for events that are too old.
FORGET_EVERY_S: Final = 60.0
# Tenants whose dropped events are counted apart.
MAX_COUNTED: Final = 1000


class HistoryReader(Protocol):
    """Reads the history as it grows, and must know what it will not find there."""

    def recorded(self, tenants: Collection[str]) -> None:
        """Events of these tenants were written."""
        ...

    async def deleting(self, events: Sequence[OldEvent]) -> None:
        """These events are deleted once this returns."""
        ...


class HistoryWriter:
    """``recorded`` and ``dropped``: how many events are on disk, and how many never will be. ``used_bytes``:
    the size of the file. ``on_drop`` records how many events of a tenant were dropped. ``reader`` is told
    what is written and deleted.
    """

    def __init__(
        self,
        store: HistoryStore,
        options: HistoryOptions,
        *,
        on_drop: Callable[[str, int], None],
        exporter: Exporter | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._options = options
        self._on_drop = on_drop
        self._exporter = exporter
        self.reader: HistoryReader | None = None
        self._exporting = True  # whether the last export succeeded
        self._clock = clock
        self._queue: deque[tuple[float, Row]] = deque()  # with the time when each was put
        self._queued_bytes = 0
        self._to_report: Counter[str] = Counter()
        self.dropped = 0
        self.recorded = 0
        self._news: dict[str, asyncio.Event] = {}  # tenant → set by its next event
        self._failing = False
        self.used_bytes = 0
        self._forget_at = 0.0
        self._writer = BackgroundWriter(self._write, idle_s=FORGET_EVERY_S)

    def start(self) -> None:
        self._writer.start("history writer")

    async def close(self) -> None:
        if not self._writer.started:
            return
        await self._writer.stop(within_s=2 * RETRY_S)
        if self._exporter is not None:
            self._exporter.close()
        if self._queue:
            log.warning("events of the history are lost: they could not be written", events=len(self._queue))

    def put(self, event: Event) -> None:
        row = row_of(event)
        size = size_of(row)
        if self._queued_bytes + size > MAX_QUEUED_BYTES:
            self._drop(event.tenant)
            return
        self._queue.append((time.monotonic(), row))
        self._queued_bytes += size
        self._writer.wake()
        if (news := self._news.pop(event.tenant, None)) is not None:
            news.set()

    @property
    def lag_s(self) -> float:
        """How long the oldest event that is not on disk has waited."""
        return time.monotonic() - self._queue[0][0] if self._queue else 0.0

    def _drop(self, tenant: str) -> None:
        known = tenant in self._to_report or len(self._to_report) < MAX_COUNTED
        self._to_report[tenant if known else SERVER_TENANT] += 1
        self.dropped += 1

    def news(self, tenant: str) -> asyncio.Event:
        """Set once the tenant has a new event."""
        return self._news.setdefault(tenant, asyncio.Event())

    async def flush(self) -> None:
        """Wait until everything that was put so far is on disk, or cannot be written now."""
        await self._writer.flush()

    async def _write(self) -> float:
        try:
            await self._drain()
            await self._forget()
        except StorageProblem as error:
            if not self._failing:
                log.warning("cannot write the history; will retry", error=error.message)
            self._failing = True
            return RETRY_S
        except Exception:
            log.exception("cannot write the history; will retry")
            return RETRY_S
        self._failing = False
        for tenant, count in self._to_report.items():
            self._on_drop(tenant, count)
        self._to_report.clear()
        return 0.0

    async def _drain(self) -> None:
        while self._queue:
            rows = [row for _, row in islice(self._queue, BATCH)]
            self.used_bytes = await self._store.append(rows)
            for row in rows:
                self._queue.popleft()
                self._queued_bytes -= size_of(row)
            self.recorded += len(rows)
            if self.reader is not None:
                self.reader.recorded({row[1] for row in rows})
            await self._export(rows)
            if self.used_bytes > self._options.max_bytes:
                await self._delete_oldest()

    async def _export(self, rows: Sequence[Row]) -> None:
        if self._exporter is None:
            return
        events = [self._store.event_of(row) for row in rows]
        try:
            await asyncio.to_thread(self._exporter.write, events)
        except OSError as error:
            if self._exporting:
                log.warning("cannot export the history; it is still recorded here", error=str(error))
            self._exporting = False
        else:
            self._exporting = True

    async def _forget(self) -> None:
        if time.monotonic() >= self._forget_at:
            self._forget_at = time.monotonic() + FORGET_EVERY_S
            await self._delete_oldest()

    async def _delete_oldest(self) -> None:
        before_us = int((self._clock() - self._options.max_age_s) * US)
        while events := await self._store.oldest(before_us, self._options.max_bytes):
            if self.reader is not None:
                await self.reader.deleting(events)
            await self._store.delete(events)
