"""The store of a provider whose sandboxes keep no files: it says what is missing, and why."""

from __future__ import annotations

from sandlot.domain.errors import NotFound, Unsupported
from sandlot.domain.workspaces.snapshots import Difference
from sandlot.domain.workspaces.workspace import StoreAbilities, StoreKind
from sandlot.providers.workspaces import Stored

NOTE = (
    "E2B keeps files with their sandbox only. Use an environment of the provider docker for snapshots, "
    "volumes and hibernation."
)


class NoWorkspaces:
    @property
    def abilities(self) -> StoreAbilities:
        return StoreAbilities(StoreKind.NONE, note=NOTE)

    async def attach(self, sandbox_id: str, workspace_id: str) -> None:
        raise _refused("give a sandbox another workspace")

    async def clone(self, snapshot_id: str, workspace_id: str) -> None:
        raise _refused("copy a snapshot")

    async def snapshot(self, workspace_id: str, snapshot_id: str) -> None:
        raise _refused("take a snapshot")

    async def changed(self, workspace_id: str, snapshot_id: str) -> bool:
        return True

    async def used_bytes(self, stored_id: str) -> int | None:
        return None

    async def compare(self, old_id: str, new_id: str) -> Difference:
        raise NotFound(f"There is no snapshot {old_id}.")

    async def delete(self, stored_id: str) -> None:
        """There is nothing to delete."""

    async def create_volume(self, volume_id: str, quota_bytes: int) -> None:
        raise _refused("make a volume")

    async def attach_volume(self, sandbox_id: str, volume_id: str, name: str, *, writable: bool) -> None:
        raise _refused("show a sandbox a volume")

    async def list(self) -> Stored:
        return Stored()


def _refused(what: str) -> Unsupported:
    return Unsupported(f"This provider cannot {what}. {NOTE}")
