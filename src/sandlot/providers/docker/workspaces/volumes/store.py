"""Stores workspaces as Docker volumes, where there is no btrfs.

The engine fills a new volume from the prepared image's /sandbox on first mount, and removes it. So the
worker never opens, changes or deletes a path that a sandbox can influence, and needs no rights on the
engine's disk. A volume belongs to one container from start to end, so a workspace that outlives its sandbox
needs a sandbox made for it. The engine limits no volume's size. The package says how snapshots are made.

The volume is not mounted nosuid or nodev. The engine's local driver accepts mount options only for
a device (type and device given), not for a plain folder. Inside a sandbox this makes no difference:
under no-new-privileges a setuid bit has no effect, no process has MKNOD, and the engine's device
cgroup refuses devices anyway. A sandbox could leave a setuid file *owned by its own user* on the
engine's disk. The engine keeps that disk closed to other users of the host.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from sandlot.domain.errors import Conflict, NotFound, SandlotError, Unsupported
from sandlot.domain.ids import first_workspace_of, is_snapshot_id, is_volume_id, is_workspace_id
from sandlot.domain.workspaces.snapshots import Difference
from sandlot.domain.workspaces.workspace import StoreAbilities, StoreKind
from sandlot.providers.docker.agent_setup import packaged_agent
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.host.users import DEFAULT_USERS, NAMESPACED_USERS, UserRange
from sandlot.providers.docker.spec import LABEL_OWNER, LABEL_SANDBOX, VOLUME_TARGET, container_name
from sandlot.providers.docker.workspaces.btrfs.errors import store_errors
from sandlot.providers.docker.workspaces.contract import ImageFiles
from sandlot.providers.docker.workspaces.volumes import archives, listing
from sandlot.providers.docker.workspaces.volumes.archives import ArchiveFolder
from sandlot.providers.docker.workspaces.volumes.copier import Copier
from sandlot.providers.docker.workspaces.volumes.steps import VolumeStep, reached
from sandlot.providers.waiting import run_to_completion
from sandlot.providers.workspaces import Stored

log = structlog.get_logger("sandlot.workspaces")

LABEL_UID: Final = "sandlot.uid"
WHAT_VOLUMES_LACK: Final = (
    "Workspaces are Docker volumes. They have no quotas, sessions cannot share volumes, and each snapshot "
    "and fork is a full copy, which takes time and disk space in proportion to the files."
)
# Each copy reads and writes as fast as the disks can. More at once only make each slower.
COPIES_AT_ONCE: Final = 2


class VolumeStore:
    """``folder``: where snapshots are. ``note``: why workspaces are in volumes, and what the operator can do
    about it. ``users``: whom workspaces made from snapshots belong to; None for what suits the engine.
    ``max_bytes``: how large a workspace may be to be copied. ``min_free_bytes``: what snapshots leave free.
    """

    def __init__(
        self,
        engine: Engine,
        owner: str,
        folder: Path,
        *,
        note: str = WHAT_VOLUMES_LACK,
        users: UserRange | None = None,
        max_bytes: int | None = None,
        min_free_bytes: int | None = None,
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._users = users
        self._archives = ArchiveFolder(folder, min_free_bytes)
        self._copier = Copier(engine, owner, packaged_agent(), max_bytes)
        self._turns = asyncio.Semaphore(COPIES_AT_ONCE)
        self.abilities = StoreAbilities(StoreKind.VOLUME, snapshots=True, note=note)

    async def open(self) -> None:
        with store_errors("open the snapshots"):
            await asyncio.to_thread(self._archives.open)
        if self._users is None:
            self._users = NAMESPACED_USERS if await self._engine.remaps_users() else DEFAULT_USERS
        await self._copier.remove_leftovers()
        for container in self._archives.paused():
            await self._resume(container)
        for workspace_id in self._archives.filling():
            await self._discard(workspace_id)
        for workspace_id in self._archives.marked() - (await self.list()).workspaces:
            self._archives.forget_marks(workspace_id)

    async def close(self) -> None:
        pass

    # --- for the provider ---------------------------------------------------------------------

    async def prepare(
        self, sandbox_id: str, uid: int, files: ImageFiles, workspace_id: str | None = None
    ) -> Mapping[str, Any]:
        if workspace_id is None:
            workspace_id = first_workspace_of(sandbox_id)
            await self._engine.create_volume(_volume_name(workspace_id), self._labels(workspace_id, uid))
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
        return _uid_of(await self._find(workspace_id))

    # --- the contract -------------------------------------------------------------------------

    async def attach(self, sandbox_id: str, workspace_id: str) -> None:
        if workspace_id != first_workspace_of(sandbox_id):
            raise Conflict("A container's volume cannot be changed. Make a sandbox for the workspace.")

    async def snapshot(self, workspace_id: str, snapshot_id: str) -> None:
        if self._archives.has(snapshot_id):
            return
        with store_errors("take a snapshot"), self._archives.staged() as staged:
            mark = await self._copy_out(workspace_id, staged)
            self._archives.publish(staged, snapshot_id)
            reached(VolumeStep.SNAPSHOT_PUBLISHED)
            self._archives.note_mark(workspace_id, snapshot_id, mark)

    async def clone(self, snapshot_id: str, workspace_id: str) -> None:
        with contextlib.suppress(NotFound):
            await self._find(workspace_id)
            return
        source = self._archives.find(snapshot_id)
        with store_errors("copy a snapshot"):
            async with self._turns, self._filling(workspace_id):
                uid = await self._choose_user()
                volume = _volume_name(workspace_id)
                await self._engine.create_volume(volume, self._labels(workspace_id, uid))
                reached(VolumeStep.VOLUME_MADE)
                report = await self._copier.restore(volume, archives.read(source), uid)
                reached(VolumeStep.VOLUME_FILLED)
            reached(VolumeStep.CLONE_PUBLISHED)
            self._archives.note_mark(workspace_id, snapshot_id, report.mark)

    async def changed(self, workspace_id: str, snapshot_id: str) -> bool:
        volume = await self._find(workspace_id)
        known = self._archives.mark_of(workspace_id, snapshot_id) if self._archives.has(snapshot_id) else None
        return known is None or await self._copier.mark(volume["Name"]) != known

    async def compare(self, old_id: str, new_id: str) -> Difference:
        with store_errors("compare files"):
            old, new = await self._listed(old_id), await self._listed(new_id)
            return await asyncio.to_thread(listing.compare, old, new)

    async def used_bytes(self, stored_id: str) -> int | None:
        """Of a snapshot, the size of its file. Of volumes, nobody keeps account."""
        if not is_snapshot_id(stored_id):
            return None
        with store_errors("look how large a snapshot is"):
            return self._archives.find(stored_id).stat().st_size

    async def delete(self, stored_id: str) -> None:
        if is_snapshot_id(stored_id):
            with store_errors("delete a snapshot"):
                self._archives.delete(stored_id)
            return
        if is_volume_id(stored_id):
            return
        try:
            volume = await self._engine.inspect_volume(_volume_name(stored_id))
        except NotFound:
            return
        # Never remove another worker's volume.
        if (volume.get("Labels") or {}).get(LABEL_OWNER) == self._owner:
            await self._engine.remove_volume(_volume_name(stored_id))
            self._archives.forget_marks(stored_id)

    async def create_volume(self, volume_id: str, quota_bytes: int) -> None:
        raise Unsupported(f"This server cannot keep volumes. {self.abilities.note}")

    async def attach_volume(self, sandbox_id: str, volume_id: str, name: str, *, writable: bool) -> None:
        raise Unsupported(f"This server cannot keep volumes. {self.abilities.note}")

    async def list(self) -> Stored:
        volumes = await self._volumes()
        filled = {_workspace_of(volume) for volume in volumes} - self._archives.filling()
        return Stored(frozenset(filled), self._archives.snapshots())

    # --- copying ------------------------------------------------------------------------------

    async def _listed(self, stored_id: str) -> listing.Listing:
        if is_snapshot_id(stored_id):
            return await asyncio.to_thread(listing.list_archive, self._archives.find(stored_id))
        with self._archives.staged() as staged:
            await self._copy_out(stored_id, staged)
            return await asyncio.to_thread(listing.list_archive, staged)

    async def _copy_out(self, workspace_id: str, target: Path) -> str:
        """Write a workspace's files as they are now to a new archive. Returns their mark."""
        volume = str((await self._find(workspace_id))["Name"])
        self._archives.check_space()
        async with self._turns, self._archives.writer(target) as writer, self._still(volume):
            report = await self._copier.keep(volume, writer.write)
            reached(VolumeStep.COPIED)
        return report.mark

    @contextlib.asynccontextmanager
    async def _still(self, volume: str) -> AsyncIterator[None]:
        """A context in which no process writes to the volume."""
        found = await self._engine.list({LABEL_OWNER: self._owner, LABEL_SANDBOX: None}, volume)
        running = [container for container in found if container["State"] == "running"]
        names = [container_name(container["Labels"][LABEL_SANDBOX]) for container in running]
        try:
            for name in names:
                self._archives.note_paused(name)
                reached(VolumeStep.PAUSE_NOTED)
                with contextlib.suppress(NotFound, Conflict):  # it has ended
                    await run_to_completion(self._engine.pause(name))
                reached(VolumeStep.PAUSED)
            yield
        finally:
            for name in names:
                await run_to_completion(self._resume(name))

    async def _resume(self, container: str) -> None:
        with contextlib.suppress(NotFound, Conflict):  # it has ended
            if (await self._engine.inspect(container))["State"].get("Paused"):
                await self._engine.unpause(container)
        reached(VolumeStep.RESUMED)
        self._archives.forget_paused(container)

    @contextlib.asynccontextmanager
    async def _filling(self, workspace_id: str) -> AsyncIterator[None]:
        """A context in which a new volume gets its files. If it fails, nothing stays."""
        if workspace_id in self._archives.filling():
            raise Conflict(f"Workspace {workspace_id} is being made.", retryable=True)
        self._archives.note_filling(workspace_id)
        try:
            reached(VolumeStep.FILLING_NOTED)
            yield
            self._archives.forget_filling(workspace_id)
        except BaseException:
            with contextlib.suppress(SandlotError):  # then the next start does it
                await run_to_completion(self._discard(workspace_id))
            raise

    async def _discard(self, workspace_id: str) -> None:
        await self.delete(workspace_id)
        reached(VolumeStep.VOLUME_REMOVED)
        self._archives.forget_filling(workspace_id)

    # --- volumes ------------------------------------------------------------------------------

    async def _choose_user(self) -> int:
        assert self._users is not None, "call open() first"
        return self._users.choose([uid for v in await self._volumes() if (uid := _uid_of(v)) is not None])

    async def _volumes(self) -> Sequence[Mapping[str, Any]]:
        return await self._engine.list_volumes({LABEL_OWNER: self._owner, LABEL_SANDBOX: None})

    def _labels(self, workspace_id: str, uid: int) -> dict[str, str]:
        """A volume made from a snapshot is labelled as if a sandbox had been made with it."""
        return {LABEL_OWNER: self._owner, LABEL_SANDBOX: _sandbox_of(workspace_id), LABEL_UID: str(uid)}

    async def _find(self, workspace_id: str) -> Mapping[str, Any]:
        volume = await self._engine.inspect_volume(_volume_name(workspace_id))
        if (volume.get("Labels") or {}).get(LABEL_OWNER) != self._owner:
            raise NotFound(f"Workspace {workspace_id} does not belong to {self._owner}.")
        if workspace_id in self._archives.filling():
            raise NotFound(f"Workspace {workspace_id} does not exist yet.")
        return volume


def _uid_of(volume: Mapping[str, Any]) -> int | None:
    uid = str((volume.get("Labels") or {}).get(LABEL_UID, ""))
    return int(uid) if uid.isascii() and uid.isdigit() else None


def _workspace_of(volume: Mapping[str, Any]) -> str:
    return first_workspace_of(str(volume["Labels"][LABEL_SANDBOX]))


def _sandbox_of(workspace_id: str) -> str:
    return "sbx_" + workspace_id.removeprefix("wsp_")


def _volume_name(workspace_id: str) -> str:
    """The volume is named after the workspace's first sandbox, as volumes always were."""
    if not is_workspace_id(workspace_id):
        raise NotFound("Not a workspace's id.")
    return container_name(_sandbox_of(workspace_id))
