"""Gives sandboxes the workspaces of their sessions, and removes those that no session has.

A sandbox is made with a new workspace. A new session takes that one as its own, which costs nothing. A
session that already has files gets them swapped into its new sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from sandlot.domain.environment import Environment
from sandlot.domain.errors import SandlotError, Unsupported
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import first_workspace_of, new_workspace_id
from sandlot.domain.session import OnIdle
from sandlot.domain.workspaces.snapshots import Snapshot, no_snapshot_error
from sandlot.domain.workspaces.workspace import StoreAbilities, Workspace
from sandlot.providers.workspaces import Stored, TreeStore, WorkspaceStore
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.workspaces.exports import Exports
from sandlot.worker.workspaces.imports import Imports
from sandlot.worker.workspaces.options import WorkspaceOptions
from sandlot.worker.workspaces.records import SnapshotRecords

if TYPE_CHECKING:  # it needs libraries that other workers do not
    from sandlot.worker.workspaces.objects.storage import ObjectStorage

log = structlog.get_logger("sandlot.workspaces")


@dataclass(frozen=True, slots=True)
class Source:
    """Where the files of a session's next sandbox come from.

    ``workspace``: one that the session has. ``snapshot``: a copy of its files. Neither: the environment's.
    """

    workspace: Workspace | None = None
    snapshot: str | None = None


NEW_FILES: Final = Source()


class OwnedWorkspaces:
    """The ids of workspaces that sessions have. ``has``: whether a live session has it.

    Those in ``giving`` are on their way to a session.
    """

    def __init__(self) -> None:
        self.has: Callable[[str], bool] = lambda _: False
        self.giving: set[str] = set()

    def __contains__(self, workspace_id: object) -> bool:
        return isinstance(workspace_id, str) and (workspace_id in self.giving or self.has(workspace_id))


class Workspaces:
    """``owned``: what a removal of sandboxes must keep."""

    def __init__(
        self,
        store: WorkspaceStore,
        records: SnapshotRecords,
        options: WorkspaceOptions,
        owned: OwnedWorkspaces,
    ) -> None:
        self.store = store
        self.records = records
        self.options = options
        self.owned = owned
        self.exports: Exports | None = None  # with ``imports``, if there is object storage for them
        self.imports: Imports | None = None
        self._unowned_since: dict[str, float] = {}

    def export_to(self, storage: ObjectStorage, worker_id: str) -> None:
        """Save snapshots in object storage too, if the store has them as folders."""
        if not isinstance(self.store, TreeStore):
            log.warning("only artifacts are saved in object storage: snapshots of Docker volumes stay here")
            return
        self.exports = Exports(storage, self.records, self.store)
        tag = worker_tag(worker_id)
        self.imports = Imports(self.exports, self.records, self.store, tag, self.options.quota_bytes)

    @property
    def abilities(self) -> StoreAbilities:
        return self.store.abilities

    @property
    def _quota_bytes(self) -> int | None:
        return self.options.quota_bytes if self.abilities.quotas else None

    def on_idle(self, asked: OnIdle | None, environment: Environment) -> OnIdle:
        """What becomes of a session when it is idle."""
        if not environment.keeps_files:
            return OnIdle.END
        default = OnIdle.HIBERNATE if self.abilities.swaps else OnIdle.END
        return asked or self.options.on_idle or default

    def check_snapshots(self) -> None:
        if not self.abilities.snapshots:
            raise Unsupported(f"This server cannot take snapshots. {self.abilities.note}")

    async def find_snapshot(self, tenant: str, snapshot_id: str) -> Snapshot:
        """``NotFound`` if the tenant has no such snapshot, here or in object storage."""
        self.check_snapshots()
        found = await self.records.find(tenant, snapshot_id)
        if found is None and self.imports is not None:
            found = await self.imports.fetch(tenant, snapshot_id)
        if found is None:
            raise no_snapshot_error(snapshot_id)
        return found

    def sandbox_made_for(self, source: Source) -> str | None:
        """The workspace that a sandbox must be made with, because no running one can get it."""
        return None if source.workspace is None or self.abilities.swaps else source.workspace.id

    @contextlib.asynccontextmanager
    async def giving(self, source: Source) -> AsyncIterator[Source]:
        """A context in which a workspace is on its way to a session, and is not removed with its sandbox.

        Where no running sandbox can get a snapshot's files, they are copied first, and what comes out names
        their workspace. If the context fails, that is deleted again.
        """
        copied = source.workspace is None and source.snapshot is not None and not self.abilities.swaps
        if copied:
            source = Source(
                Workspace(new_workspace_id(), self._quota_bytes, source.snapshot), source.snapshot
            )
        if source.workspace is None:
            yield source
            return
        self.owned.giving.add(source.workspace.id)
        try:
            if copied and source.snapshot is not None:
                await self.store.clone(source.snapshot, source.workspace.id)
                reached(Step.SNAPSHOT_CLONED)
            yield source
        except BaseException:
            if copied:  # while its sandbox is being removed, this fails, and the sweep deletes it
                await asyncio.shield(self.try_delete(source.workspace.id))
            raise
        finally:
            self.owned.giving.discard(source.workspace.id)

    async def obtain(self, sandbox_id: str, source: Source, seed: str | None = None) -> Workspace:
        """The workspace of a new sandbox's session, with its files. ``NotFound`` if they are gone.

        ``seed``: the snapshot that the environment names, which the sandbox was made with.
        """
        if source.workspace is not None:
            return source.workspace
        if source.snapshot is None:
            return Workspace(first_workspace_of(sandbox_id), self._quota_bytes, seed)
        workspace = Workspace(new_workspace_id(), self._quota_bytes, source.snapshot)
        await self.store.clone(source.snapshot, workspace.id)
        reached(Step.SNAPSHOT_CLONED)
        return workspace

    @contextlib.asynccontextmanager
    async def attaching(
        self, sandbox_id: str, source: Source, workspace: Workspace | None
    ) -> AsyncIterator[None]:
        """A context beside which a new sandbox gets its session's files. It has them at the end.

        A worker may die in it before or after it has recorded the session: ``attach`` finishes it.
        """
        giving = asyncio.create_task(self._give(sandbox_id, source, workspace))
        try:
            yield
        except BaseException:
            await asyncio.gather(giving, return_exceptions=True)
            raise
        await giving

    async def _give(self, sandbox_id: str, source: Source, workspace: Workspace | None) -> None:
        try:
            await self.attach(sandbox_id, workspace)
        except BaseException:
            if source.workspace is None and workspace is not None:  # a copy that nobody else has
                await asyncio.shield(self.try_delete(workspace.id))
            raise

    async def attach(self, sandbox_id: str, workspace: Workspace | None) -> None:
        """Give a sandbox its session's workspace, unless it has it already."""
        if workspace is not None and self.abilities.swaps and workspace.id != first_workspace_of(sandbox_id):
            await self.store.attach(sandbox_id, workspace.id)
            reached(Step.WORKSPACE_ATTACHED)

    async def delete(self, workspace_id: str) -> None:
        """Delete a workspace whose session has ended. Its sandbox must be gone."""
        await self.store.delete(workspace_id)

    async def try_delete(self, stored_id: str) -> bool:
        try:
            await self.store.delete(stored_id)
        except SandlotError as error:
            log.warning("cannot delete files yet; will retry", id=stored_id, error=error.message)
            return False
        return True

    async def sweep(
        self, stored: Stored, known_snapshots: set[str], in_sandboxes: set[str], now: float, grace_s: float
    ) -> int:
        """Delete workspaces and snapshots that nobody has, once they were seen so for ``grace_s``.

        ``in_sandboxes``: the first workspaces of the sandboxes that there are.
        """
        unowned = {
            workspace_id
            for workspace_id in stored.workspaces - in_sandboxes
            if workspace_id not in self.owned
        } | (stored.snapshots - known_snapshots)
        self._unowned_since = {name: self._unowned_since.get(name, now) for name in unowned}
        deleted = 0
        for name, since in list(self._unowned_since.items()):
            if now - since >= grace_s and name not in self.owned:
                log.warning("deleting files that belong to no session", id=name)
                deleted += await self.try_delete(name)
        return deleted
