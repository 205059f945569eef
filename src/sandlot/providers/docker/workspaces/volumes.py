"""Stores workspaces as Docker volumes, where there is no btrfs.

The engine fills a new volume from the prepared image's /sandbox on first mount, and removes it. So the
worker never opens, changes or deletes a path that a sandbox can influence, and needs no rights on the
engine's disk. A volume belongs to one container from start to end, so a workspace that outlives its sandbox
needs a sandbox made for it. The engine limits no volume's size and takes no snapshots.

The volume is not mounted nosuid or nodev. The engine's local driver accepts mount options only for
a device (type and device given), not for a plain folder. Inside a sandbox this makes no difference:
under no-new-privileges a setuid bit has no effect, no process has MKNOD, and the engine's device
cgroup refuses devices anyway. A sandbox could leave a setuid file *owned by its own user* on the
engine's disk. The engine keeps that disk closed to other users of the host.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NoReturn

from sandlot.domain.errors import Conflict, NotFound, Unsupported
from sandlot.domain.ids import first_workspace_of, is_snapshot_id, is_volume_id, is_workspace_id
from sandlot.domain.workspaces.snapshots import Difference
from sandlot.domain.workspaces.workspace import StoreAbilities, StoreKind
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.spec import LABEL_OWNER, LABEL_SANDBOX, VOLUME_TARGET, container_name
from sandlot.providers.docker.workspaces.contract import ImageFiles
from sandlot.providers.workspaces import Stored

LABEL_UID = "sandlot.uid"
WHAT_VOLUMES_LACK = (
    "Workspaces are Docker volumes, which have no quotas and no snapshots. Run `sudo sandlot storage "
    "init` on the worker's machine and restart the worker to get both."
)


class VolumeStore:
    """``note``: why workspaces are in volumes, and what the operator can do about it."""

    def __init__(self, engine: Engine, owner: str, note: str = WHAT_VOLUMES_LACK) -> None:
        self._engine = engine
        self._owner = owner
        self.abilities = StoreAbilities(StoreKind.VOLUME, note=note)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def prepare(
        self, sandbox_id: str, uid: int, files: ImageFiles, workspace_id: str | None = None
    ) -> Mapping[str, Any]:
        if workspace_id is None:
            workspace_id = first_workspace_of(sandbox_id)
            labels = {LABEL_OWNER: self._owner, LABEL_SANDBOX: sandbox_id, LABEL_UID: str(uid)}
            await self._engine.create_volume(_volume_name(workspace_id), labels)
        else:
            await self._find(workspace_id)  # the engine would make an empty one
        return {
            "Type": "volume",
            "Source": _volume_name(workspace_id),
            "Target": VOLUME_TARGET,
            "VolumeOptions": {"NoCopy": False},
        }

    async def release(self, sandbox_id: str, keep: Container[str] = ()) -> None:
        """Deletes the sandbox's first workspace only. Another one that it had is deleted by its id."""
        if (workspace_id := first_workspace_of(sandbox_id)) not in keep:
            await self.delete(workspace_id)

    async def user_of(self, workspace_id: str) -> int | None:
        labels = (await self._find(workspace_id)).get("Labels") or {}
        uid = str(labels.get(LABEL_UID, ""))
        return int(uid) if uid.isascii() and uid.isdigit() else None

    async def delete(self, stored_id: str) -> None:
        if is_snapshot_id(stored_id) or is_volume_id(stored_id):
            return
        try:
            volume = await self._engine.inspect_volume(_volume_name(stored_id))
        except NotFound:
            return
        # Never remove another worker's volume.
        if (volume.get("Labels") or {}).get(LABEL_OWNER) == self._owner:
            await self._engine.remove_volume(_volume_name(stored_id))

    async def list(self) -> Stored:
        volumes = await self._engine.list_volumes({LABEL_OWNER: self._owner, LABEL_SANDBOX: None})
        return Stored(
            frozenset(first_workspace_of(str(volume["Labels"][LABEL_SANDBOX])) for volume in volumes)
        )

    async def used_bytes(self, stored_id: str) -> int | None:
        return None

    # --- what volumes cannot do ---------------------------------------------------------------

    async def attach(self, sandbox_id: str, workspace_id: str) -> None:
        if workspace_id != first_workspace_of(sandbox_id):
            raise Conflict("A container's volume cannot be changed. Make a sandbox for the workspace.")

    async def clone(self, snapshot_id: str, workspace_id: str) -> None:
        self._refuse()

    async def snapshot(self, workspace_id: str, snapshot_id: str) -> None:
        self._refuse()

    async def changed(self, workspace_id: str, snapshot_id: str) -> bool:
        self._refuse()

    async def compare(self, old_id: str, new_id: str) -> Difference:
        self._refuse()

    async def create_volume(self, volume_id: str, quota_bytes: int) -> None:
        raise Unsupported(f"This server cannot keep volumes. {self.abilities.note}")

    async def attach_volume(self, sandbox_id: str, volume_id: str, name: str, *, writable: bool) -> None:
        raise Unsupported(f"This server cannot keep volumes. {self.abilities.note}")

    def _refuse(self) -> NoReturn:
        raise Unsupported(f"This server cannot take snapshots. {self.abilities.note}")

    async def _find(self, workspace_id: str) -> Mapping[str, Any]:
        volume = await self._engine.inspect_volume(_volume_name(workspace_id))
        if (volume.get("Labels") or {}).get(LABEL_OWNER) != self._owner:
            raise NotFound(f"Workspace {workspace_id} does not belong to {self._owner}.")
        return volume


def _volume_name(workspace_id: str) -> str:
    """The volume is named after the workspace's first sandbox, as volumes always were."""
    if not is_workspace_id(workspace_id):
        raise NotFound("Not a workspace's id.")
    return container_name("sbx_" + workspace_id.removeprefix("wsp_"))
