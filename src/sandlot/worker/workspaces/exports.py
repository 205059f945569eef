"""Exports: saves snapshots in object storage in the background, and gets them back.

The records are the queue: a snapshot is recorded with its wish to be exported, and a deleted one leaves the
wish to delete its export. A failure is tried again, and never fails a snapshot.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from sandlot.domain.errors import NotFound, SandlotError
from sandlot.domain.workspaces.exports import Cause, ExportMeta, Mark
from sandlot.domain.workspaces.snapshots import Snapshot
from sandlot.providers.workspaces import TreeStore
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.retried_work import RetriedWork
from sandlot.worker.workspaces.export_records import Export
from sandlot.worker.workspaces.records import SnapshotRecords

if TYPE_CHECKING:  # it needs libraries that other workers do not
    from sandlot.worker.workspaces.objects.storage import ObjectStorage

log = structlog.get_logger("sandlot.exports")

# How many snapshots are saved or deleted at once.
AT_ONCE: Final = 2
# How many parents are looked at for one that is exported.
_PARENTS: Final = 20


class Exports:
    """Call ``start``, and ``close`` before the records, the store and the storage are closed."""

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
        self._work = RetriedWork(
            "exports", records.exports_to_do, self._do, before=self.opened, at_once=AT_ONCE, clock=clock
        )
        self.start = self._work.start
        self.close = self._work.close
        self.wake = self._work.wake
        records.exports = True

    async def opened(self) -> ObjectStorage:
        await self.storage.open()
        return self.storage

    # --- the queue ----------------------------------------------------------------------------

    @property
    def problems(self) -> Sequence[str]:
        """What an operator should know."""
        if self._work.problem is not None:
            return (f"Snapshots are not saved in object storage: {self._work.problem}",)
        if (latest := self._work.latest_failure) is None:
            return ()
        return (f"Snapshots not saved in object storage yet: {len(self._work.failures)}. {latest}",)

    def note(self, session_id: str) -> str:
        """What is wrong with the exports of one session; empty if nothing is."""
        failed = [failure for failure in self._work.failures.values() if failure.lane == session_id]
        message = self._work.problem or (failed[-1].message if failed else None)
        return "" if message is None else f"Snapshots are not saved in object storage now: {message}"

    async def _do(self, export: Export) -> None:
        if export.deleting:
            await self._delete(export)
        else:
            await self._export(export)

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


def _mark_of(export: Export) -> Mark:
    return Mark(export.generation, export.created_at, export.snapshot)


def wish(snapshot: Snapshot, generation: int, cause: Cause) -> Export:
    """The record of a snapshot that is to be exported."""
    return Export(snapshot.id, snapshot.tenant, snapshot.session_id, generation, snapshot.created_at, cause)
