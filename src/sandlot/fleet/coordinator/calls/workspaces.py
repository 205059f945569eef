"""Workspaces and snapshots in a fleet.

A snapshot is on the worker that took it, and its id says which one that is. So no record of snapshots is kept
beside those of the workers.
"""

from __future__ import annotations

from typing import Final

from sandlot.domain.errors import NotFound, SandlotError, Unavailable, Unsupported
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import snapshot_tag
from sandlot.domain.session import Session
from sandlot.domain.workspaces.listing import check_listing, merged
from sandlot.domain.workspaces.snapshots import (
    Difference,
    Restored,
    RestoreSnapshot,
    Snapshot,
    SnapshotPage,
    TakeSnapshot,
    no_snapshot_error,
)
from sandlot.domain.workspaces.workspace import WorkspaceStatus
from sandlot.fleet.coordinator.asked_workers import share_of
from sandlot.fleet.coordinator.calls.forwarded import ENGINE_CALL_S, ForwardedCalls
from sandlot.fleet.coordinator.worker_links import as_client_error, watched
from sandlot.fleet.directory.contract import WorkerRef, WorkerState

# Seconds to compare two trees of files.
COMPARE_S: Final = ENGINE_CALL_S


class WorkspaceCalls(ForwardedCalls):
    # --- of one session -----------------------------------------------------------------------

    async def get_workspace(self, session_id: str) -> WorkspaceStatus:
        async with self._worker_for(session_id, within_s=self._options.call_timeout_s) as worker:
            return await worker.get_workspace(session_id)

    async def hibernate_session(self, session_id: str) -> Session:
        async with self._worker_for(session_id, within_s=ENGINE_CALL_S) as worker:
            return await worker.hibernate_session(session_id)

    async def take_snapshot(self, session_id: str, request: TakeSnapshot) -> Snapshot:
        async with self._worker_for(session_id, within_s=ENGINE_CALL_S) as worker:
            return await worker.take_snapshot(session_id, request)

    async def restore_snapshot(self, session_id: str, request: RestoreSnapshot) -> Restored:
        try:
            async with self._worker_for(session_id, within_s=ENGINE_CALL_S) as worker:
                return await worker.restore_snapshot(session_id, request)
        except NotFound as error:  # neither on this worker nor in object storage
            if request.snapshot is None:
                raise
            raise await self._not_together(session_id, request.snapshot, error) from error

    async def _not_together(self, session_id: str, snapshot_id: str, error: NotFound) -> SandlotError:
        """The error for a snapshot that the session's worker did not find."""
        here = await self._locations.worker_of(self._tenant, session_id)
        tag = snapshot_tag(snapshot_id)
        there = None if tag is None else await self._parts.asked.tagged(tag)
        if there is None or there.id == here.id or there.state is WorkerState.GONE:
            return await self._not_found(snapshot_id, error)
        return Unsupported(
            f"Snapshot {snapshot_id} is not on worker {here.id}, which has session {session_id}, and not in "
            "object storage. A fleet moves no other files between workers. Create a session with the "
            "snapshot instead: it begins on the worker that has it."
        )

    # --- of snapshots -------------------------------------------------------------------------

    async def list_snapshots(
        self, *, session_id: str | None = None, after: str | None = None, limit: int = 100
    ) -> SnapshotPage:
        check_listing(after, limit)
        asked = self._parts.asked
        workers = await (asked.all() if session_id is None else asked.with_session(session_id))
        each = share_of(limit, workers)
        pages = await asked.ask(
            workers,
            self._principal,
            lambda link: link.list_snapshots(session_id=session_id, after=after, limit=each),
        )
        return merged(pages, limit)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        worker = await self._worker_with(snapshot_id)
        if worker is not None:
            await self._delete_at(worker, snapshot_id)

    async def _delete_at(self, worker: WorkerRef, snapshot_id: str) -> None:
        try:
            link = await self._links.to(worker, self._principal)
            async with watched(link, ENGINE_CALL_S):
                await link.delete_snapshot(snapshot_id)
        except SandlotError as error:
            raise as_client_error(worker.id, error) from error

    async def compare_snapshot(self, snapshot_id: str, *, to: str | None = None) -> Difference:
        worker = await self._worker_with(snapshot_id)
        if worker is None:
            raise no_snapshot_error(snapshot_id)
        if to is not None and snapshot_tag(to) not in (None, worker_tag(worker.id)):
            raise Unsupported(
                f"Snapshots {snapshot_id} and {to} are on different workers. Compare snapshots of one worker."
            )
        try:
            link = await self._links.to(worker, self._principal)
            async with watched(link, COMPARE_S):
                return await link.compare_snapshot(snapshot_id, to=to)
        except SandlotError as error:
            raise as_client_error(worker.id, error) from error

    async def _worker_to_begin_on(self, snapshot_id: str) -> str | None:
        """The worker that a new session with these files must be on. ``None``: that worker is gone, so any
        may look for the snapshot in object storage.
        """
        tag = snapshot_tag(snapshot_id)
        worker = None if tag is None else await self._parts.asked.tagged(tag)
        if worker is None and tag is None:
            raise no_snapshot_error(snapshot_id)
        return None if worker is None or worker.state is WorkerState.GONE else worker.id

    async def _not_found(self, snapshot_id: str, error: NotFound) -> SandlotError:
        """The error for a snapshot that another worker did not find, because its own worker is gone."""
        tag = snapshot_tag(snapshot_id)
        worker = None if tag is None else await self._parts.asked.tagged(tag)
        if worker is None or worker.state is not WorkerState.GONE:
            return error
        return Unavailable(
            f"Worker {worker.id}, which has snapshot {snapshot_id}, is gone, and the snapshot is not in "
            "object storage. Once the worker is back, retry.",
            retryable=False,
            details={"reason": "worker_gone", "worker_id": worker.id},
        )

    async def _worker_with(self, snapshot_id: str) -> WorkerRef | None:
        """The worker that has this snapshot, if there is such a snapshot. None: there is none."""
        tag = snapshot_tag(snapshot_id)
        worker = None if tag is None else await self._parts.asked.tagged(tag)
        if worker is not None and worker.state is WorkerState.GONE:
            raise Unavailable(
                f"Worker {worker.id}, which has the snapshot, does not answer. Once it is back, retry.",
                retryable=False,
                details={"reason": "worker_gone", "worker_id": worker.id},
            )
        return worker
