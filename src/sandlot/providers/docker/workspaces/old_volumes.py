"""A btrfs store for a worker that kept its workspaces in volumes before.

New workspaces are on btrfs. Those in volumes stay there until their sessions end: their sandboxes run on,
and they are removed with them. No snapshots can be taken of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandlot.domain.errors import Conflict, Unavailable, Unsupported
from sandlot.domain.ids import first_workspace_of
from sandlot.domain.workspaces.snapshots import Difference
from sandlot.domain.workspaces.workspace import StoreAbilities
from sandlot.providers.docker.workspaces.btrfs.store import BtrfsStore
from sandlot.providers.docker.workspaces.contract import DockerWorkspaceStore, ImageFiles
from sandlot.providers.docker.workspaces.volumes.store import VolumeStore
from sandlot.providers.workspaces import Stored


class BtrfsBesideVolumes:
    """``opened``: called when the store is open."""

    def __init__(self, btrfs: BtrfsStore, volumes: VolumeStore, opened: Callable[[], None]) -> None:
        self._btrfs = btrfs
        self._volumes = volumes
        self._opened = opened
        self._in_volumes: set[str] = set()  # workspaces; none is added to them

    @property
    def abilities(self) -> StoreAbilities:
        return self._btrfs.abilities

    async def open(self) -> None:
        await self._btrfs.open()
        await self._volumes.open()
        self._in_volumes = set((await self._volumes.list()).workspaces)
        self._opened()

    async def close(self) -> None:
        await self._btrfs.close()
        await self._volumes.close()

    async def prepare(
        self, sandbox_id: str, uid: int, files: ImageFiles, workspace_id: str | None = None
    ) -> Mapping[str, Any]:
        return await self._store_of(workspace_id).prepare(sandbox_id, uid, files, workspace_id)

    async def release(self, sandbox_id: str, keep: Container[str] = ()) -> None:
        await self._btrfs.release(sandbox_id, keep)
        if (workspace_id := first_workspace_of(sandbox_id)) in self._in_volumes:
            await self._volumes.release(sandbox_id, keep)
            if workspace_id not in keep:
                self._in_volumes.discard(workspace_id)

    async def user_of(self, workspace_id: str) -> int | None:
        return await self._store_of(workspace_id).user_of(workspace_id)

    async def attach(self, sandbox_id: str, workspace_id: str) -> None:
        if workspace_id in self._in_volumes:
            if workspace_id == first_workspace_of(sandbox_id):
                return
            raise Conflict(
                f"Workspace {workspace_id} is in a Docker volume, from before this server stored workspaces "
                "on btrfs, and its sandbox is gone. To reach its files, the operator can start the server "
                "with SANDLOT_WORKSPACE_STORE=volume. Without them, delete the session and create another."
            )
        if first_workspace_of(sandbox_id) in self._in_volumes:
            raise Unavailable(
                "The sandbox for this session was made before this server stored workspaces on btrfs. It is "
                "being removed. Retry the request.",
                retry_after_s=1.0,
            )
        await self._btrfs.attach(sandbox_id, workspace_id)

    async def clone(self, snapshot_id: str, workspace_id: str) -> None:
        await self._btrfs.clone(snapshot_id, workspace_id)

    async def snapshot(self, workspace_id: str, snapshot_id: str) -> None:
        self._check_on_btrfs(workspace_id)
        await self._btrfs.snapshot(workspace_id, snapshot_id)

    async def changed(self, workspace_id: str, snapshot_id: str) -> bool:
        self._check_on_btrfs(workspace_id)
        return await self._btrfs.changed(workspace_id, snapshot_id)

    async def used_bytes(self, stored_id: str) -> int | None:
        return await self._store_of(stored_id).used_bytes(stored_id)

    async def compare(self, old_id: str, new_id: str) -> Difference:
        self._check_on_btrfs(old_id)
        self._check_on_btrfs(new_id)
        return await self._btrfs.compare(old_id, new_id)

    async def delete(self, stored_id: str) -> None:
        await self._store_of(stored_id).delete(stored_id)
        self._in_volumes.discard(stored_id)

    async def list(self) -> Stored:
        found = await self._btrfs.list()
        return replace(found, workspaces=found.workspaces | self._in_volumes)

    async def create_volume(self, volume_id: str, quota_bytes: int) -> None:
        await self._btrfs.create_volume(volume_id, quota_bytes)

    async def attach_volume(self, sandbox_id: str, volume_id: str, name: str, *, writable: bool) -> None:
        await self._btrfs.attach_volume(sandbox_id, volume_id, name, writable=writable)

    def snapshot_folder(self, snapshot_id: str) -> Path:
        return self._btrfs.snapshot_folder(snapshot_id)

    def new_snapshot(self, snapshot_id: str) -> AbstractAsyncContextManager[Path]:
        return self._btrfs.new_snapshot(snapshot_id)

    def _store_of(self, stored_id: str | None) -> DockerWorkspaceStore:
        return self._volumes if stored_id in self._in_volumes else self._btrfs

    def _check_on_btrfs(self, workspace_id: str) -> None:
        if workspace_id in self._in_volumes:
            raise Unsupported(
                f"Workspace {workspace_id} is in a Docker volume, from before this server stored workspaces "
                "on btrfs. Only newer sessions can have snapshots."
            )
