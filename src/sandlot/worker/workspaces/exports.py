"""Exports: saves snapshots in object storage in the background, and gets them back.

The records are the queue: a snapshot is recorded with its wish to be exported, and a deleted one leaves the
wish to delete its export. A failure is tried again, and never fails a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from sandlot.domain.errors import NotFound, SandlotError
from sandlot.domain.workspaces.exports import Cause, ExportMeta, Mark
from sandlot.domain.workspaces.snapshots import Snapshot
from sandlot.providers.workspaces import TreeStore
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.workspaces.export_records import Export
from sandlot.worker.workspaces.records import SnapshotRecords

if TYPE_CHECKING:  # it needs libraries that other workers do not
    from sandlot.worker.workspaces.objects.storage import ObjectStorage

log = structlog.get_logger("sandlot.exports")

# How many snapshots are saved or deleted at once.
AT_ONCE: Final = 2
# Seconds before a failed one is tried again: the first time, and at most.
RETRY_S: Final = 5.0
MAX_RETRY_S: Final = 600.0
# Seconds between two looks at the queue if nothing says that it has changed.
LOOK_EVERY_S: Final = 60.0
_LOOKED_AT: Final = 1000
# Space is freed so often, and first so long after the start. What nobody needs is found by one round, and
# deleted a day later: with two rounds a day, that is no later than two days.
COLLECT_EVERY_S: Final = 12 * 3600.0
COLLECT_FIRST_S: Final = 3600.0
# How many parents are looked at for one that is exported.
_PARENTS: Final = 20


@dataclass(frozen=True, slots=True)
class _Failure:
    session: str
    count: int
    message: str
    retry_at: float


class Exports:
    """Call ``start``, and ``close`` before the records and the storage's store are closed."""

    def __init__(
        self,
        storage: ObjectStorage,
        records: SnapshotRecords,
        store: TreeStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.storage = storage
        self._records = records
        self._store = store
        self._clock = clock
        self._is_open = False
        self._opening = asyncio.Lock()
        self._woken = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._busy: dict[str, asyncio.Task[None]] = {}  # by session: one at a time
        self._failures: dict[str, _Failure] = {}  # by snapshot
        self._problem: str | None = None
        self._collect_at = clock() + COLLECT_FIRST_S
        records.exports = True

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run(), name="exports")

    async def close(self) -> None:
        tasks = [*self._busy.values(), *([] if self._loop is None else [self._loop])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.storage.close()

    async def opened(self) -> ObjectStorage:
        async with self._opening:
            if not self._is_open:
                await self.storage.open()
                self._is_open = True
        return self.storage

    # --- the queue ----------------------------------------------------------------------------

    def wake(self) -> None:
        """Look at the queue soon, because something was added."""
        self._woken.set()

    @property
    def problems(self) -> Sequence[str]:
        """What an operator should know."""
        if self._problem is not None:
            return (f"Snapshots are not saved in object storage: {self._problem}",)
        if not self._failures:
            return ()
        latest = max(self._failures.values(), key=lambda failure: failure.retry_at)
        return (f"Snapshots not saved in object storage yet: {len(self._failures)}. {latest.message}",)

    def note(self, session_id: str) -> str:
        """What is wrong with the exports of one session; empty if nothing is."""
        failed = [failure for failure in self._failures.values() if failure.session == session_id]
        message = self._problem or (failed[-1].message if failed else None)
        return "" if message is None else f"Snapshots are not saved in object storage now: {message}"

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            wait_s = RETRY_S
            try:
                await self.opened()
                wait_s = await self._start_due()
                self._problem = None
                await self._collect()
            except SandlotError as error:
                if self._problem != error.message:
                    log.warning("cannot use the object storage; will retry", error=error.message)
                self._problem = error.message
            except Exception:
                log.exception("exports failed; will retry")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()

    async def _start_due(self) -> float:
        """Start what is due. Returns the seconds until something else may be."""
        now, wait_s = self._clock(), LOOK_EVERY_S
        to_do = await self._records.exports_to_do(_LOOKED_AT)
        for export in to_do:
            failure = self._failures.get(export.snapshot)
            if failure is not None and failure.retry_at > now:
                wait_s = min(wait_s, failure.retry_at - now)
            elif export.session not in self._busy and len(self._busy) < AT_ONCE:
                task = asyncio.create_task(self._do(export), name=f"export {export.snapshot}")
                self._busy[export.session] = task
                task.add_done_callback(lambda _, session=export.session: self._done(session))  # type: ignore[misc]
        return max(wait_s, 0.01)

    def _done(self, session_id: str) -> None:
        del self._busy[session_id]
        self._woken.set()

    async def _do(self, export: Export) -> None:
        try:
            if export.deleting:
                await self._delete(export)
            else:
                await self._export(export)
        except Exception as error:
            expected = isinstance(error, SandlotError)
            message = error.message if isinstance(error, SandlotError) else "See the worker's log."
            log.warning("cannot export a snapshot yet", snapshot=export.snapshot, exc_info=not expected)
            before = self._failures.get(export.snapshot)
            count = 1 if before is None else before.count + 1
            pause_s = min(RETRY_S * 2 ** min(count - 1, 20), MAX_RETRY_S)
            self._failures[export.snapshot] = _Failure(
                export.session, count, message, self._clock() + pause_s
            )
        else:
            self._failures.pop(export.snapshot, None)

    # --- saving -------------------------------------------------------------------------------

    async def _export(self, export: Export) -> None:
        snapshot = await self._records.find(export.tenant, export.snapshot)
        try:
            if snapshot is None:
                raise NotFound("The snapshot is deleted.")
            folder = self._store.snapshot_folder(snapshot.id)
        except NotFound as error:
            log.warning("a snapshot is gone before its export", snapshot=export.snapshot, error=error.message)
            known = await self._records.export_of(export.snapshot)
            if known is not None and not known.deleting:
                await self._records.forget_export(export.snapshot)
            return
        meta = msgspec.json.encode(ExportMeta(snapshot, export.generation, export.cause))
        base = await self._base_of(snapshot)
        saved = await self.storage.save(export.tenant, snapshot.id, folder, meta, base)
        await self.storage.mark(export.tenant, export.session, _mark_of(export))
        reached(Step.EXPORT_PUBLISHED)
        await self._records.set_exported(snapshot.id, self._clock())
        reached(Step.EXPORT_RECORDED)
        log.info("exported a snapshot", snapshot=snapshot.id, sent=saved.bytes_sent, of=saved.bytes_total)
        if export.cause.automatic:
            older = await self._records.automatic_before(export.session, export.created_at)
            await self.forget([one.snapshot for one in older])

    async def _base_of(self, snapshot: Snapshot) -> str | None:
        """The nearest exported parent, or else the session's last export."""
        parent = snapshot.parent
        for _ in range(_PARENTS):
            if parent is None:
                break
            export = await self._records.export_of(parent)
            if export is not None and export.exported_at is not None and not export.deleting:
                return parent
            found = await self._records.find(snapshot.tenant, parent)
            parent = None if found is None else found.parent
        last = await self._records.last_export_of(snapshot.session_id)
        return None if last is None else last.snapshot

    # --- deleting -----------------------------------------------------------------------------

    async def forget(self, snapshot_ids: Sequence[str]) -> None:
        """Delete automatic snapshots that are not needed any more, and later their exports."""
        if not snapshot_ids:
            return
        await self._records.remove(snapshot_ids)
        reached(Step.SNAPSHOT_FORGOTTEN)
        for snapshot_id in snapshot_ids:
            with contextlib.suppress(SandlotError):  # the sweep deletes it
                await self._store.delete(snapshot_id)
        self.wake()

    async def _delete(self, export: Export) -> None:
        # The mark last: without it, nobody would look for what a death leaves of the rest.
        await self.storage.delete(export.tenant, export.snapshot)
        await self.storage.unmark(export.tenant, export.session, _mark_of(export))
        await self._records.forget_export(export.snapshot)

    async def sweep(
        self, has_ended: Callable[[str], bool], lives: Callable[[str], bool], age_s: float
    ) -> None:
        """Delete the automatic snapshots of sessions that have ended, and old ones of unknown sessions."""
        before = self._clock() - age_s
        await self.forget(
            [
                export.snapshot
                for export in await self._records.automatic_exports()
                if has_ended(export.session) or (export.created_at < before and not lives(export.session))
            ]
        )

    async def _collect(self) -> None:
        if self._clock() >= self._collect_at:
            self._collect_at = self._clock() + COLLECT_EVERY_S
            collected = await self.storage.collect()
            log.info("freed object storage", objects=collected.deleted, bytes=collected.freed_bytes)


def _mark_of(export: Export) -> Mark:
    return Mark(export.generation, export.created_at, export.snapshot)


def wish(snapshot: Snapshot, generation: int, cause: Cause) -> Export:
    """The record of a snapshot that is to be exported."""
    return Export(snapshot.id, snapshot.tenant, snapshot.session_id, generation, snapshot.created_at, cause)
