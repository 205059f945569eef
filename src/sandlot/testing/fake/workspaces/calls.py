"""The calls of ``FakeService`` about workspaces and their snapshots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sandlot.domain import session_states as states
from sandlot.domain.capacity.usage import SandboxUsage
from sandlot.domain.session import SessionState
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
    Difference,
    Restored,
    RestoreSnapshot,
    Snapshot,
    SnapshotPage,
    TakeSnapshot,
)
from sandlot.domain.workspaces.workspace import Workspace, WorkspaceStatus
from sandlot.testing.fake.records import Record
from sandlot.testing.fake.workspaces.computers import Computers
from sandlot.testing.fake.workspaces.folders import bytes_in, compare, written


class WorkspaceCalls(Computers):
    """The workspaces of ``FakeService``. Nothing awaits between reading a line and moving it."""

    _clock: Callable[[], float]

    def _touch(self, record: Record) -> None:
        raise NotImplementedError

    async def get_workspace(self, session_id: str) -> WorkspaceStatus:
        record = self._record(session_id)
        abilities = self._snapshots.store.abilities
        return WorkspaceStatus(
            _workspace_of(record),
            abilities.kind,
            bytes_in(record.files),
            self._snapshots.count(session_id),
            abilities.note,
        )

    async def get_usage(self, session_id: str) -> SandboxUsage:
        """Files and processes are counted. A fake sandbox has no memory and takes no processor time."""
        record = self._record(session_id)
        limits, workspace = record.session.limits, record.session.workspace
        computer = record.computer if record.session.state is SessionState.ACTIVE else None
        return SandboxUsage(
            measured_at=self._clock(),
            cpu_s=0.0,
            cpus=limits.cpus,
            memory_bytes=0,
            memory_limit_bytes=limits.memory_bytes,
            # The agent is one.
            processes=0 if computer is None else 1 + computer.running,
            processes_limit=limits.pids,
            disk_bytes=None if workspace is None else bytes_in(record.files),
            disk_limit_bytes=None if workspace is None else workspace.quota_bytes,
        )

    # --- taking -----------------------------------------------------------------------------------

    async def take_snapshot(self, session_id: str, request: TakeSnapshot) -> Snapshot:
        self._snapshots.check()
        record = self._record(session_id)
        self._touch(record)
        snapshot = self._take(record, request)
        self._snapshots.thin_out(session_id)
        return snapshot

    def _take(self, record: Record, request: TakeSnapshot, *, base: bool = False) -> Snapshot:
        """``base``: it has the files that the session begins its first step with."""
        workspace = _workspace_of(record)
        line = self._line(workspace)
        check_ends(line, request)
        if line.head is not None and may_answer_with_head(line, request):
            head = self._snapshots.find(record.session.tenant, line.head)
            if head is not None and not written(self._snapshots.files_of(head), record.files):
                self._snapshots.lines[workspace.id] = line_after(line, request, head.id) or line
                return head
        snapshot = self._snapshots.take(record.session, record.files, request, line.head, base=base)
        self._snapshots.lines[workspace.id] = line_after(line, request, snapshot.id, base=base) or line
        return snapshot

    def _line(self, workspace: Workspace) -> Line:
        return line_of(self._snapshots.lines.get(workspace.id), workspace)

    # --- restoring --------------------------------------------------------------------------------

    async def restore_snapshot(self, session_id: str, request: RestoreSnapshot) -> Restored:
        self._snapshots.check()
        record = self._record(session_id)
        wanted = request.snapshot
        if wanted is None:  # only a step may leave it out
            base = self._snapshots.base_of(session_id) or self._take(record, TakeSnapshot(), base=True)
            wanted = base.id
        if request.step and self._goes_on(record, wanted, request.step):
            return Restored(record.visible_session, False, wanted)
        return await self._restore(record, self._snapshots.get(record.session.tenant, wanted), request.step)

    def _goes_on(self, record: Record, snapshot_id: str, step: str) -> bool:
        """Begin a step with the files as they are, or return False if the snapshot must be restored for it."""
        workspace = _workspace_of(record)
        line = self._line(workspace)
        if not goes_on(line, snapshot_id, step):
            return False
        self._snapshots.lines[workspace.id] = begun(line, snapshot_id, step)
        self._touch(record)
        return True

    async def _restore(self, record: Record, snapshot: Snapshot, step: str) -> Restored:
        self._check_volumes(record.session)  # before anything changes
        now = self._clock()
        report = states.restore_report(record.session, snapshot.id, now)

        self._snapshots.forget_line(record.session)
        workspace, record.files = self._snapshots.clone(snapshot)
        if step:
            self._snapshots.lines[workspace.id] = begun(Line(), snapshot.id, step)
        session = states.restored(record.session, "", report, now)
        await self._replace(record, replace(session, workspace=workspace))
        return Restored(record.session, True, snapshot.id, report.lost, report.kept)

    # --- listing, comparing, deleting -------------------------------------------------------------

    async def list_snapshots(
        self, *, session_id: str | None = None, after: str | None = None, limit: int = 100
    ) -> SnapshotPage:
        check_listing(after, limit)
        return snapshot_page(self._snapshots.in_order(self._principal.tenant, session_id, after), limit)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        found = self._snapshots.find(self._principal.tenant, snapshot_id)
        if found is not None:
            self._snapshots.delete([found])

    async def compare_snapshot(self, snapshot_id: str, *, to: str | None = None) -> Difference:
        old = self._snapshots.get(self._principal.tenant, snapshot_id)
        if to is not None:
            new = self._snapshots.files_of(self._snapshots.get(self._principal.tenant, to))
        else:
            new = self._record(old.session_id).files
        return compare(self._snapshots.files_of(old), new)


def _workspace_of(record: Record) -> Workspace:
    assert record.session.workspace is not None, "a session that has not ended has a workspace"
    return record.session.workspace
