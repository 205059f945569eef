"""Imports: gets snapshots from object storage that this worker does not have."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from sandlot.domain.errors import NotFound, SandlotError, StorageProblem
from sandlot.domain.ids import is_snapshot_id
from sandlot.domain.session import Session
from sandlot.domain.workspaces.exports import Cause, ExportMeta, Mark
from sandlot.domain.workspaces.objects.entry_names import damaged
from sandlot.domain.workspaces.snapshots import Snapshot
from sandlot.providers.workspaces import TreeStore
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.workspaces.export_records import Export
from sandlot.worker.workspaces.exports import Exports, wish
from sandlot.worker.workspaces.records import SnapshotRecords

log = structlog.get_logger("sandlot.exports")


class Imports:
    """``tag``: of this worker. ``max_bytes``: how much data a snapshot may have."""

    def __init__(
        self,
        exports: Exports,
        records: SnapshotRecords,
        store: TreeStore,
        tag: str,
        max_bytes: int | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._exports = exports
        self._records = records
        self._store = store
        self._tag = tag
        self._max_bytes = max_bytes
        self._clock = clock
        self._loading: dict[str, asyncio.Task[Snapshot]] = {}

    async def close(self) -> None:
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def fetch(self, tenant: str, snapshot_id: str) -> Snapshot | None:
        """A snapshot that this worker has no record of; ``None`` if it is not in the object storage."""
        if not is_snapshot_id(snapshot_id) or await self._records.export_of(snapshot_id) is not None:
            return None  # its export is about to be deleted
        try:
            meta = await self._meta(tenant, snapshot_id)
        except NotFound:
            return None
        exported = wish(meta.snapshot, meta.generation, Cause.NAMED)
        return await self._load(
            tenant, snapshot_id, meta.snapshot, replace(exported, exported_at=self._clock())
        )

    # --- files of sessions whose worker is gone -----------------------------------------------

    async def newest(self, session: Session) -> ExportMeta | None:
        """What is known of the session's newest export, if it has one."""
        for mark in await self._marks(session):
            if (meta := await self._marked(session, mark)) is not None:
                return meta
        return None

    async def take_over(self, session: Session) -> Snapshot | None:
        """A snapshot here with the files of the session's newest export, if it has one.

        It has an id of this worker, and ``taken_over`` adds it to the exports. The same export gives the same
        id, so a caller that tries again finds what is loaded by now.
        """
        for mark in await self._marks(session):
            meta = await self._marked(session, mark)
            if meta is None:
                continue
            snapshot = replace(
                meta.snapshot,
                id=f"snp_{self._tag}{hashlib.sha256(mark.snapshot.encode()).hexdigest()[:24]}",
                name="",
                labels=Cause.TAKEN_OVER.labels,
                parent=None,
            )
            known = await self._records.find(session.tenant, snapshot.id)
            if known is not None:
                return known
            try:
                return await self._load(session.tenant, mark.snapshot, snapshot)
            except StorageProblem as error:
                if not error.details.get("damaged"):
                    raise
                log.warning("an export is damaged; trying an older one", snapshot=mark.snapshot)
        return None

    async def taken_over(self, session: Session) -> None:
        """Save what a session has taken over as its own export, now that it is here."""
        if session.workspace is None or session.workspace.snapshot is None:
            return
        snapshot = await self._records.find(session.tenant, session.workspace.snapshot)
        if snapshot is not None:
            await self._records.want_export(wish(snapshot, session.generation, Cause.TAKEN_OVER))
            self._exports.wake()

    async def _marks(self, session: Session) -> Sequence[Mark]:
        storage = await self._exports.opened()
        return await storage.marks(session.tenant, session.id)

    async def _marked(self, session: Session, mark: Mark) -> ExportMeta | None:
        try:
            meta = await self._meta(session.tenant, mark.snapshot)
        except NotFound:
            return None  # deleted
        except StorageProblem as error:
            if not error.details.get("damaged"):
                raise
            log.warning("an export is damaged", snapshot=mark.snapshot, error=error.message)
            return None
        if meta.snapshot.session_id != session.id:
            log.error("an export is another session's", snapshot=mark.snapshot, session=session.id)
            return None
        return meta

    # --- loading ------------------------------------------------------------------------------

    async def _meta(self, tenant: str, snapshot_id: str) -> ExportMeta:
        storage = await self._exports.opened()
        described = await storage.describe(tenant, snapshot_id)
        try:
            meta = msgspec.json.decode(described.meta, type=ExportMeta)
        except msgspec.MsgspecError:
            raise damaged(f"nothing describes snapshot {snapshot_id}") from None
        if meta.snapshot.id != snapshot_id or meta.snapshot.tenant != tenant:
            raise damaged(f"snapshot {snapshot_id} is another one")
        return meta

    async def _load(
        self, tenant: str, saved_id: str, snapshot: Snapshot, export: Export | None = None
    ) -> Snapshot:
        """Load it once, however many ask for it. It goes on without those who give up."""
        task = self._loading.get(snapshot.id)
        if task is None:
            task = self._start(snapshot.id, self._loaded(tenant, saved_id, snapshot, export))
        return await asyncio.shield(task)

    def _start(self, snapshot_id: str, work: Coroutine[Any, Any, Snapshot]) -> asyncio.Task[Snapshot]:
        def done(task: asyncio.Task[Snapshot]) -> None:
            del self._loading[snapshot_id]
            error = None if task.cancelled() else task.exception()
            if error is not None:
                message = error.message if isinstance(error, SandlotError) else repr(error)
                log.warning("cannot get a snapshot from object storage", snapshot=snapshot_id, error=message)

        task = self._loading[snapshot_id] = asyncio.create_task(work, name=f"import {snapshot_id}")
        task.add_done_callback(done)
        return task

    async def _loaded(
        self, tenant: str, saved_id: str, snapshot: Snapshot, export: Export | None
    ) -> Snapshot:
        storage = await self._exports.opened()
        async with self._store.new_snapshot(snapshot.id) as folder:
            await storage.load(tenant, saved_id, folder, max_bytes=self._max_bytes)
        reached(Step.SNAPSHOT_FETCHED)
        await self._records.add(snapshot, "", export=export)
        log.info("got a snapshot from object storage", snapshot=saved_id, id=snapshot.id)
        return snapshot
