"""Snapshots of sessions' files: taking, listing, comparing, restoring and deleting them.

A snapshot is stored first and recorded then; it is forgotten first and deleted then. So a worker that dies in
between leaves files that nobody knows, and the sweep deletes those.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import Conflict, StorageProblem
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.history.recorder import called_by
from sandlot.domain.ids import new_snapshot_id
from sandlot.domain.session import SessionState
from sandlot.domain.session_states import ended_error
from sandlot.domain.workspaces.exports import Cause
from sandlot.domain.workspaces.lines import (
    Line,
    begun,
    check_ends,
    goes_on,
    line_after,
    line_of,
    may_answer_with_head,
)
from sandlot.domain.workspaces.listing import check_listing, snapshot_page
from sandlot.domain.workspaces.snapshots import (
    BASE_LABEL,
    Difference,
    Restored,
    RestoreSnapshot,
    Snapshot,
    SnapshotPage,
    TakeSnapshot,
)
from sandlot.domain.workspaces.workspace import Workspace, WorkspaceStatus
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.sessions.elsewhere import no_workspace_error
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.sessions.opening import Opening
from sandlot.worker.workspaces.exports import wish
from sandlot.worker.workspaces.workspaces import Workspaces

log = structlog.get_logger("sandlot.snapshots")

# How many old snapshots are deleted in one go. Each takes the file system some work.
DELETE_AT_ONCE: Final = 100


class Snapshots:
    def __init__(
        self,
        workspaces: Workspaces,
        opening: Opening,
        worker_id: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.records = workspaces.records
        self._workspaces = workspaces
        self._store = workspaces.store
        self._opening = opening
        self._sessions = opening.sessions
        self._tag = worker_tag(worker_id)
        self._clock = clock

    async def status(self, tenant: str, session_id: str) -> WorkspaceStatus:
        live_session = self._sessions.table.get(tenant, session_id)
        workspace = _workspace_of(live_session)
        return WorkspaceStatus(
            workspace,
            self._store.abilities.kind,
            await self._store.used_bytes(workspace.id),
            await self.records.count(session_id),
            self._note(session_id),
        )

    def _note(self, session_id: str) -> str:
        exports = self._workspaces.exports
        return self._store.abilities.note or ("" if exports is None else exports.note(session_id))

    # --- taking -------------------------------------------------------------------------------

    async def take(self, tenant: str, session_id: str, request: TakeSnapshot) -> Snapshot:
        self._workspaces.check_snapshots()
        live_session = self._sessions.table.get(tenant, session_id)
        async with live_session.transition_lock:
            self._check_usable(live_session)
            if request.name:
                await self._check_named(session_id)
            live_session.touch()
            snapshot = await self._take(live_session, request)
        await self._thin_out(session_id)
        return snapshot

    async def take_automatic(
        self, live_session: LiveSession, state: SessionState, since: str | None, cause: Cause
    ) -> str | None:
        """Take a snapshot for its export, unless the files are still those of ``since``. It is no use of the
        session.

        Returns the snapshot with the files as they are; ``None`` if the session is not in ``state`` any more.
        """
        async with live_session.transition_lock:
            workspace = live_session.session.workspace
            if live_session.session.state is not state or live_session.given_up or workspace is None:
                return None
            known = None if since is None else await self.records.find(live_session.session.tenant, since)
            if known is not None and not await self._store.changed(workspace.id, known.id):
                return known.id
            return (await self._take(live_session, TakeSnapshot(), cause=cause)).id

    async def _take(
        self,
        live_session: LiveSession,
        request: TakeSnapshot,
        *,
        base: bool = False,
        cause: Cause = Cause.NAMED,
    ) -> Snapshot:
        """``base``: it has the files that the session begins its first step with. ``cause``: why it is
        exported, if it is.
        """
        workspace = _workspace_of(live_session)
        line = await self._line(workspace)
        check_ends(line, request)
        if line.head is not None and may_answer_with_head(line, request):
            head = await self.records.find(live_session.session.tenant, line.head)
            if head is not None and not await self._store.changed(workspace.id, head.id):
                await self.records.set_line(workspace.id, line_after(line, request, head.id) or line)
                return head
        session = live_session.session
        labels = {**request.labels, BASE_LABEL: "true"} if base else {**request.labels, **cause.labels}
        snapshot = Snapshot(
            id=new_snapshot_id(self._tag),
            session_id=session.id,
            created_at=self._clock(),
            environment=session.environment,
            tenant=session.tenant,
            thread=session.thread,
            name=request.name,
            labels=labels,
            parent=line.head,
        )
        exports = self._workspaces.exports
        exported = exports is not None and (bool(request.name) or cause.automatic)
        export = wish(snapshot, session.generation, cause) if exported else None
        with live_session.being_copied():
            await self._store.snapshot(workspace.id, snapshot.id)
        reached(Step.SNAPSHOT_STORED)
        after = line_after(line, request, snapshot.id, base=base)
        try:
            await self.records.add(snapshot, workspace.id, after, export)
        except StorageProblem:
            await self._workspaces.try_delete(snapshot.id)
            raise
        reached(Step.SNAPSHOT_RECORDED)
        if exports is not None:
            exports.wake()
        return snapshot

    async def _line(self, workspace: Workspace) -> Line:
        return line_of(await self.records.line(workspace.id), workspace)

    # --- restoring ----------------------------------------------------------------------------

    async def restore(self, principal: Principal, session_id: str, request: RestoreSnapshot) -> Restored:
        self._workspaces.check_snapshots()
        live_session = self._sessions.table.get(principal.tenant, session_id)
        if request.step:
            async with live_session.step_lock:
                return await self._begin_step(principal, live_session, request)
        assert request.snapshot is not None
        return await self._restore(
            principal, live_session, await self._workspaces.find_snapshot(principal.tenant, request.snapshot)
        )

    async def _begin_step(
        self, principal: Principal, live_session: LiveSession, request: RestoreSnapshot
    ) -> Restored:
        async with live_session.transition_lock:
            self._check_usable(live_session)
            workspace = _workspace_of(live_session)
            line = await self._line(workspace)
            wanted = request.snapshot
            if wanted is None:
                base = await self.records.base_of(live_session.session.id)
                if base is None:
                    base = await self._take(live_session, TakeSnapshot(), base=True)
                    line = Line(base.id)
                wanted = base.id
            if goes_on(line, wanted, request.step):
                await self.records.set_line(workspace.id, begun(line, wanted, request.step))
                live_session.touch()
                return Restored(live_session.client_view, False, wanted)
        found = await self._workspaces.find_snapshot(principal.tenant, wanted)
        restored = await self._restore(principal, live_session, found)
        await self.records.set_line(_workspace_of(live_session).id, begun(Line(), wanted, request.step))
        return restored

    async def _restore(self, principal: Principal, live_session: LiveSession, snapshot: Snapshot) -> Restored:
        with called_by(principal):
            loss = await self._opening.replace_sandbox(live_session, snapshot.id)
        return Restored(live_session.session, True, snapshot.id, loss.lost, loss.kept)

    # --- listing, comparing, deleting ---------------------------------------------------------

    async def page(self, tenant: str, session_id: str | None, after: str | None, limit: int) -> SnapshotPage:
        check_listing(after, limit)
        found = await self.records.page(tenant, session_id, after, limit + 1)
        page = snapshot_page(found, limit)
        sized = [
            replace(snapshot, unique_bytes=await self._store.used_bytes(snapshot.id))
            for snapshot in page.snapshots
        ]
        return replace(page, snapshots=tuple(sized))

    async def compare(self, tenant: str, snapshot_id: str, to: str | None) -> Difference:
        self._workspaces.check_snapshots()
        old = await self._workspaces.find_snapshot(tenant, snapshot_id)
        if to is not None:
            return await self._store.compare(old.id, (await self._workspaces.find_snapshot(tenant, to)).id)
        live_session = self._sessions.table.get(tenant, old.session_id)
        with live_session.being_copied():
            return await self._store.compare(old.id, _workspace_of(live_session).id)

    async def delete(self, tenant: str, snapshot_id: str) -> None:
        found = await self.records.find(tenant, snapshot_id)
        if found is not None:
            await self._delete([found])

    async def _delete(self, snapshots: Sequence[Snapshot]) -> None:
        await self.records.remove([snapshot.id for snapshot in snapshots])
        reached(Step.SNAPSHOT_FORGOTTEN)
        for snapshot in snapshots:
            await self._workspaces.try_delete(snapshot.id)
        if self._workspaces.exports is not None:
            self._workspaces.exports.wake()

    async def _thin_out(self, session_id: str) -> None:
        """Delete the oldest snapshots of a session that has too many."""
        too_many = await self.records.above_count(session_id, self._workspaces.options.max_snapshots)
        if too_many:
            await self._delete(too_many[:DELETE_AT_ONCE])

    async def sweep(self, in_sandboxes: set[str], grace_s: float) -> None:
        """Delete old snapshots, and files that nobody has.

        ``in_sandboxes``: the workspaces that sandboxes were made with.
        """
        await self._delete_old()
        if self._workspaces.exports is not None:
            table = self._sessions.table
            await self._workspaces.exports.sweep(
                lambda session_id: table.ended(session_id) is not None,
                lambda session_id: table.by_id(session_id) is not None,
                self._workspaces.options.max_age_s,
            )
        known = await self.records.ids()  # before listing: one that is recorded in between is not unknown
        stored = await self._store.list()
        known |= await self.records.ids()
        await self._workspaces.sweep(stored, known, in_sandboxes, self._clock(), grace_s)
        await self.records.forget_lines(set(stored.workspaces))

    async def _delete_old(self) -> None:
        before = self._clock() - self._workspaces.options.max_age_s
        while old := await self.records.older_than(before, DELETE_AT_ONCE):
            await self._delete(old)

    # --- checks -------------------------------------------------------------------------------

    async def _check_named(self, session_id: str) -> None:
        """Named snapshots are never deleted because there are many, so their number is limited."""
        most = self._workspaces.options.max_snapshots
        if await self.records.count_named(session_id) >= most:
            raise Conflict(
                f"Session {session_id} has {most} named snapshots, which is the most that this server keeps. "
                "Delete some, or leave out the name: then the oldest are deleted."
            )

    def _check_usable(self, live_session: LiveSession) -> None:
        if live_session.session.state is SessionState.ENDED:
            raise ended_error(live_session.session)
        self._sessions.check_not_given_up(live_session)


def _workspace_of(live_session: LiveSession) -> Workspace:
    workspace = live_session.session.workspace
    if workspace is None:
        if live_session.session.state is SessionState.LOST:
            raise Conflict(
                f"Session {live_session.session.id} lost its files with its worker. Recreate it first."
            )
        raise no_workspace_error(live_session.session, "snapshots")
    return workspace
