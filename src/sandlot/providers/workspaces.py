"""The contract of workspace stores: where a provider's workspaces, snapshots and volumes are.

A sandbox is made with a new workspace of its own (``first_workspace_of``). It keeps that one, or gets another
in its place. ``Provider.destroy`` removes a sandbox with its workspace, unless the caller keeps that. It
never deletes a volume: those that the sandbox had are free again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from sandlot.domain.workspaces.snapshots import Difference
from sandlot.domain.workspaces.workspace import StoreAbilities


@dataclass(frozen=True, slots=True)
class Stored:
    """The ids of everything in a store."""

    workspaces: frozenset[str] = frozenset()
    snapshots: frozenset[str] = frozenset()
    volumes: frozenset[str] = frozenset()


class WorkspaceStore(Protocol):
    """Every call may be repeated: what is done already stays done.

    A process that dies in the middle of a call leaves the state before it or the one after it. What it left
    half done is removed when the store is opened again.
    """

    @property
    def abilities(self) -> StoreAbilities: ...

    async def attach(self, sandbox_id: str, workspace_id: str) -> None:
        """Give a sandbox this workspace in place of its first one, which is deleted.

        No other sandbox may have it. Only if the store ``swaps``.
        """
        ...

    async def clone(self, snapshot_id: str, workspace_id: str) -> None:
        """Make a workspace with the files of a snapshot, that no sandbox has.

        ``NotFound`` if there is no such snapshot.
        """
        ...

    async def snapshot(self, workspace_id: str, snapshot_id: str) -> None:
        """Keep the workspace's files as they are now.

        ``NotFound`` if there is no such workspace, ``StorageFull`` if there is no room.
        """
        ...

    async def changed(self, workspace_id: str, snapshot_id: str) -> bool:
        """Whether anything was written to the workspace since it was cloned from the snapshot, or the
        snapshot taken from it. In doubt, it was.
        """
        ...

    async def used_bytes(self, stored_id: str) -> int | None:
        """How much a workspace or a volume uses of its quota, or a snapshot needs alone; None if unknown."""
        ...

    async def compare(self, old_id: str, new_id: str) -> Difference:
        """How the files of a snapshot or workspace differ from those of a snapshot."""
        ...

    async def delete(self, stored_id: str) -> None:
        """Delete a workspace or a volume that no sandbox has, or a snapshot."""
        ...

    async def create_volume(self, volume_id: str, quota_bytes: int) -> None:
        """Make an empty volume that may grow to this size. Only if the store keeps ``volumes``."""
        ...

    async def attach_volume(self, sandbox_id: str, volume_id: str, name: str, *, writable: bool) -> None:
        """Show a running sandbox a volume, at /volumes/<name>. Only if the store keeps ``volumes``.

        ``writable``: the volume itself, which no other sandbox may have: ``Conflict`` then. Otherwise a copy
        of its files as they are now, which the sandbox cannot change. A sandbox that has the volume keeps
        what it has. ``NotFound`` if there is no such volume.
        """
        ...

    async def list(self) -> Stored: ...


@runtime_checkable
class TreeStore(WorkspaceStore, Protocol):
    """A store whose snapshots are folders on this machine, for exports and imports.

    All files belong to one user there: a tree that is filled must too, as its own folder does.
    """

    def snapshot_folder(self, snapshot_id: str) -> Path:
        """The folder with a snapshot's files, which never change. ``NotFound`` if there is none."""
        ...

    def new_snapshot(self, snapshot_id: str) -> AbstractAsyncContextManager[Path]:
        """A context with an empty folder to fill, which becomes the snapshot.

        If the context fails, nothing stays. It does nothing if the snapshot exists.
        """
        ...


@runtime_checkable
class ArchiveStore(WorkspaceStore, Protocol):
    """A store whose snapshots leave and come as archives: a tar in zstd, with a checksum."""

    def read_archive(self, snapshot_id: str) -> AsyncGenerator[bytes, None]:
        """Yield a snapshot as an archive. ``NotFound`` before the first piece if there is none.

        An error later means that the archive has no end.
        """
        ...

    async def new_from_archive(
        self, snapshot_id: str, archive: AsyncIterable[bytes], max_bytes: int | None = None
    ) -> None:
        """Make a snapshot of an archive, which anybody may have made. It is read once, as it is unpacked.

        ``max_bytes``: how much it may unpack to. ``InvalidRequest`` names what is damaged or refused,
        ``TooLarge`` what is above a limit. If it fails, nothing stays.
        """
        ...
