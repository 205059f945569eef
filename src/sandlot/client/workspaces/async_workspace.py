"""``AsyncSessionWorkspace``: a session's files as a whole, and their snapshots."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from sandlot.domain.service import SandboxService
from sandlot.domain.session import Session
from sandlot.domain.workspaces.snapshots import (
    Difference,
    Restored,
    RestoreSnapshot,
    Snapshot,
    TakeSnapshot,
)
from sandlot.domain.workspaces.workspace import WorkspaceStatus

# A snapshot, or its id.
SnapshotOrId = Snapshot | str


class Described(Protocol):
    """What a workspace knows of its session, which is an ``AsyncSession``."""

    info: Session


class AsyncSessionWorkspace:
    """A session's files in /workspace as a whole: how much they use, and their snapshots.

    A snapshot is the workspace at one moment. It never changes, and outlives its session. Where the server's
    store has no snapshots, calls about them raise ``Unsupported``.
    """

    def __init__(self, session: Described, service: SandboxService) -> None:
        self._session = session
        self._service = service

    @property
    def _session_id(self) -> str:
        return self._session.info.id

    async def status(self) -> WorkspaceStatus:
        """Return how much the workspace uses, of how much, and what the server's store can do."""
        return await self._service.get_workspace(self._session_id)

    async def snapshot(self, name: str = "", *, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Keep the files as they are now. What commands that have ended wrote is in it completely.

        ``name`` and ``labels``: your own. A server keeps a limited number of snapshots without a name.
        """
        return await self._service.take_snapshot(self._session_id, TakeSnapshot(name, labels or {}))

    async def snapshots(self) -> AsyncGenerator[Snapshot, None]:
        """Iterate over the snapshots of this session, oldest first; pages are fetched as needed."""
        async for snapshot in iterate_snapshots(self._service, self._session_id):
            yield snapshot

    async def restore(self, snapshot: SnapshotOrId) -> Restored:
        """Give the session the files of a snapshot, which may be of another session of yours.

        Every process of the session ends, and it gets a new sandbox: its generation grows. The result says
        what was lost and what was kept.
        """
        request = RestoreSnapshot(snapshot_id(snapshot))
        restored = await self._service.restore_snapshot(self._session_id, request)
        self._session.info = restored.session
        return restored

    async def begin_step(self, step: str, snapshot: SnapshotOrId | None = None) -> Restored:
        """Begin something that you may later go back to, with the files of a snapshot.

        ``step``: your name for it. ``snapshot``: what the last step's ``end_step`` returned; None means the
        files that the session began its first step with. Nothing happens if the files are those already. If
        you go back, or another step was broken off, they are restored as with ``restore``.
        """
        request = RestoreSnapshot(None if snapshot is None else snapshot_id(snapshot), step)
        restored = await self._service.restore_snapshot(self._session_id, request)
        self._session.info = restored.session
        return restored

    async def end_step(self, step: str) -> Snapshot:
        """End a step, and return the snapshot with its files. If nothing has changed, it is the last one.

        Raises ``Conflict`` if another step has begun in the meantime.
        """
        return await self._service.take_snapshot(self._session_id, TakeSnapshot(step=step))

    async def diff(self, snapshot: SnapshotOrId, to: SnapshotOrId | None = None) -> Difference:
        """Return how the files differ from those of a snapshot: what was added, changed and removed.

        ``to``: compare a later snapshot, instead of the files that the snapshot's session has now.
        """
        later = None if to is None else snapshot_id(to)
        return await self._service.compare_snapshot(snapshot_id(snapshot), to=later)

    async def delete_snapshot(self, snapshot: SnapshotOrId) -> None:
        """Delete a snapshot. Sessions that began from it keep their files. Deleting twice is no error."""
        await self._service.delete_snapshot(snapshot_id(snapshot))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._session_id}>"


def snapshot_id(snapshot: SnapshotOrId) -> str:
    return snapshot.id if isinstance(snapshot, Snapshot) else snapshot


async def iterate_snapshots(
    service: SandboxService, session_id: str | None
) -> AsyncGenerator[Snapshot, None]:
    """Yield all snapshots of a session, or of the tenant, however many pages they are on."""
    after: str | None = None
    while True:
        page = await service.list_snapshots(session_id=session_id, after=after)
        for snapshot in page.snapshots:
            yield snapshot
        if page.next is None:
            return
        after = page.next
