"""Stores workspaces as btrfs subvolumes.

A snapshot, and a workspace made from one, shares all its blocks with what it was made from, and costs some
milliseconds whatever its size. A running sandbox can get another workspace. All blocking work is in
threads, and runs to its end even if the caller is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Container, Mapping
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import Any, Final, TypeVar

import structlog

from sandlot.domain.errors import Conflict, EngineProblem, NotFound
from sandlot.domain.ids import first_workspace_of, is_snapshot_id, is_volume_id, is_workspace_id
from sandlot.domain.workspaces.snapshots import Difference
from sandlot.domain.workspaces.workspace import StoreAbilities, StoreKind
from sandlot.providers.archives.limits import Limits
from sandlot.providers.archives.streams import packed, unpacked
from sandlot.providers.docker.spec import VOLUME_TARGET
from sandlot.providers.docker.workspaces.btrfs import quotas, removing, subvolumes
from sandlot.providers.docker.workspaces.btrfs.checks import check_btrfs
from sandlot.providers.docker.workspaces.btrfs.errors import store_errors, unless_full
from sandlot.providers.docker.workspaces.btrfs.layout import Layout
from sandlot.providers.docker.workspaces.btrfs.old_files import OldFiles
from sandlot.providers.docker.workspaces.btrfs.reading import Reader
from sandlot.providers.docker.workspaces.btrfs.recounting import Recounting
from sandlot.providers.docker.workspaces.btrfs.seeds.images import Seeds, publish_tree, staged_tree
from sandlot.providers.docker.workspaces.btrfs.seeds.spares import Spares
from sandlot.providers.docker.workspaces.btrfs.sizes import Sizes, Space
from sandlot.providers.docker.workspaces.btrfs.steps import StoreStep, reached
from sandlot.providers.docker.workspaces.btrfs.volumes.folders import VolumeFolders
from sandlot.providers.docker.workspaces.contract import ImageFiles
from sandlot.providers.waiting import run_to_completion
from sandlot.providers.workspaces import Stored

log = structlog.get_logger("sandlot.workspaces")

T = TypeVar("T")

WITHOUT_QUOTAS: Final = (
    "Workspaces have no quotas, because the btrfs has no simple quotas (since Linux 6.7). As root, run "
    "`sandlot storage init` for its folder to switch them on, and restart the worker. If full quotas are on, "
    "which are too slow for many snapshots, run `btrfs quota disable` before."
)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


class BtrfsStore:
    """``folder``: on btrfs; workers may share it. ``owner``: has a folder of its own there.
    ``quota_bytes``: how large each workspace may grow; ``None``: without limit.
    """

    def __init__(self, folder: Path, owner: str, quota_bytes: int | None = None) -> None:
        self._layout = Layout(folder.absolute() / _folder_name(owner))
        self._sizes = Sizes(quota_bytes)
        self._space = Space(self._layout.root, self._layout.delete_old_files)
        self._lock = RLock()  # what changes the layout
        self._reader = Reader(self._layout, self._lock)
        self._seeds = Seeds(self._layout, self._sizes)
        self._volumes = VolumeFolders(self._layout, self._sizes, self._lock)
        self._old_files = OldFiles(self._layout)
        self._recounting = Recounting(self._layout, self._sizes, self._reader)
        self.spares = Spares(self._layout, self._sizes, self._reader, self._space.check)
        self.abilities = StoreAbilities(StoreKind.BTRFS, True, True, True)

    async def open(self) -> None:
        with store_errors("open the workspace storage"):
            await _finished(self._open)
        self._recounting.start()

    def _open(self) -> None:
        if (problem := check_btrfs(self._layout.root)) is not None:
            raise EngineProblem(
                f"Cannot keep workspaces on btrfs. {problem} To use Docker volumes, set "
                "SANDLOT_WORKSPACE_STORE=volume."
            )
        with self._lock:
            self._layout.open()
            self._volumes.open()
            with subvolumes.opened(self._layout.root) as root:
                # Not switched on here: older kernels cannot mount a file system that has had them.
                self._sizes.on = quotas.mode(root) == "simple"
            note = "" if self._sizes.on else WITHOUT_QUOTAS
            # A volume without a quota could fill the disk for everybody.
            self.abilities = StoreAbilities(
                StoreKind.BTRFS, self._sizes.on, True, True, note, volumes=self._sizes.on
            )
            for workspace_id in self._layout.workspaces():
                with unless_full("apply the quota"):
                    self._sizes.limit_again(self._layout.workspace(workspace_id))

    async def close(self) -> None:
        await self._recounting.stop()
        await self.spares.stop()
        await self._old_files.stop()

    # --- for the provider ---------------------------------------------------------------------

    async def prepare(
        self, sandbox_id: str, uid: int, files: ImageFiles, workspace_id: str | None = None
    ) -> Mapping[str, Any]:
        with store_errors("make a workspace"):
            seed = await self._seeds.of(files) if workspace_id is None else None
            target = await _finished(lambda: self._prepare(sandbox_id, uid, seed, workspace_id))
        return {
            "Type": "bind",
            "Source": str(target),
            "Target": VOLUME_TARGET,
            "BindOptions": {"Propagation": "rprivate"},
        }

    def _prepare(self, sandbox_id: str, uid: int, seed: Path | None, workspace_id: str | None) -> Path:
        layout = self._layout
        if layout.sandbox(sandbox_id).exists():  # a repeated call
            return layout.mount(sandbox_id, uid)
        with layout.staged() as staged:
            if seed is None:
                assert workspace_id is not None
                layout.stage_sandbox(staged, workspace_id, existing=True)
            else:
                target = layout.stage_sandbox(staged, first_workspace_of(sandbox_id), existing=False)
                subvolumes.copy(seed, target, read_only=False)
                self._sizes.inherit(seed, target)
                reached(StoreStep.FIRST_FILES_MADE)
            reached(StoreStep.SANDBOX_STAGED)
            with self._lock:
                if workspace_id is not None:
                    self._check_free(workspace_id)
                layout.publish_sandbox(staged, sandbox_id)
        return layout.mount(sandbox_id, uid)

    async def release(self, sandbox_id: str, keep: Container[str] = ()) -> None:
        with store_errors("remove a workspace"):
            try:
                await _finished(lambda: self._release(sandbox_id, keep))
            finally:
                self._old_files.delete_soon()

    def _release(self, sandbox_id: str, keep: Container[str]) -> None:
        with self._lock:
            if self._layout.sandbox(sandbox_id).exists():
                self._layout.finish_attach(sandbox_id)
                self._volumes.take_back(sandbox_id)
            workspace_id = self._layout.workspace_of(sandbox_id)
            self._layout.release(sandbox_id, keep=workspace_id is not None and workspace_id in keep)
        self._space.deleted()

    async def user_of(self, workspace_id: str) -> int | None:
        return None

    # --- the contract -------------------------------------------------------------------------

    async def attach(self, sandbox_id: str, workspace_id: str) -> None:
        with store_errors("attach a workspace"):
            try:
                await _finished(lambda: self._attach(sandbox_id, workspace_id))
            finally:
                self._old_files.delete_soon()

    def _attach(self, sandbox_id: str, workspace_id: str) -> None:
        with self._lock:
            if not self._layout.sandbox(sandbox_id).exists():
                raise NotFound(f"Sandbox {sandbox_id} has no storage here.")
            self._layout.finish_attach(sandbox_id)
            if self._layout.sandbox_of.get(workspace_id) == sandbox_id:
                return
            self._check_free(workspace_id)
            self._layout.attach(sandbox_id, workspace_id)

    async def clone(self, snapshot_id: str, workspace_id: str) -> None:
        with store_errors("copy a snapshot"):
            await _finished(lambda: self._clone(snapshot_id, workspace_id))
        self.spares.make_soon(snapshot_id)

    def _clone(self, snapshot_id: str, workspace_id: str) -> None:
        if not self._is_new(workspace_id):
            return
        source = self._reader.snapshot(snapshot_id)
        self._space.check()
        with self._lock:
            target = self._layout.detached(workspace_id)
            taken = self._is_new(workspace_id) and self.spares.take(snapshot_id, target)
        if not taken:
            with self._layout.staged() as staged:
                subvolumes.copy(source, staged, read_only=False)
                self._sizes.inherit(source, staged)
                reached(StoreStep.CLONE_MADE)
                with self._lock:
                    if self._is_new(workspace_id):
                        staged.rename(target)
        reached(StoreStep.CLONE_PUBLISHED)

    async def snapshot(self, workspace_id: str, snapshot_id: str) -> None:
        with store_errors("take a snapshot"):
            await _finished(lambda: self._snapshot(workspace_id, snapshot_id))

    def _snapshot(self, workspace_id: str, snapshot_id: str) -> None:
        target = self._layout.snapshot(snapshot_id)
        if target.is_dir():
            return
        self._space.check()
        with contextlib.suppress(FileExistsError):  # a call at the same time
            self._reader.copy_now(workspace_id, target)
        reached(StoreStep.SNAPSHOT_MADE)
        # An upper bound: a workspace that inherits these files is counted when that matters.
        if (charge := self._sizes.charge(self._reader.workspace(workspace_id))) is not None:
            self._sizes.note_size(target, charge.used)

    async def changed(self, workspace_id: str, snapshot_id: str) -> bool:
        with store_errors("look for changes"):
            return await _finished(lambda: self._reader.changed(workspace_id, snapshot_id))

    async def used_bytes(self, stored_id: str) -> int | None:
        """As of the last commit of the file system: up to 30 s ago. Of a snapshot, no one keeps account."""
        if not is_workspace_id(stored_id) and not is_volume_id(stored_id):
            return None
        with store_errors("look how much a workspace uses"):
            return await asyncio.to_thread(self._used_bytes, stored_id)

    def _used_bytes(self, stored_id: str) -> int | None:
        find = self._volumes.path if is_volume_id(stored_id) else self._reader.workspace
        with self._lock:
            charge = self._sizes.charge(find(stored_id))
        return None if charge is None else charge.used

    async def compare(self, old_id: str, new_id: str) -> Difference:
        with store_errors("compare files"):
            return await _finished(lambda: self._reader.compare(old_id, new_id))

    async def delete(self, stored_id: str) -> None:
        with store_errors("delete files"):
            try:
                await _finished(lambda: self._delete(stored_id))
            finally:
                self._old_files.delete_soon()

    def _delete(self, stored_id: str) -> None:
        if is_snapshot_id(stored_id):
            removing.remove(self._layout.snapshot(stored_id).parent, stored_id)
            self.spares.drop(stored_id)
        elif is_volume_id(stored_id):
            with self._lock:
                if stored_id in self._volumes.sandbox_of:
                    raise Conflict(f"A sandbox writes to volume {stored_id}.", retryable=True)
                removing.remove(self._layout.folder("volumes"), stored_id)
        else:
            with self._lock:
                if stored_id in self._layout.sandbox_of:
                    raise Conflict(f"A sandbox has workspace {stored_id}.", retryable=True)
                self._layout.delete_workspace(stored_id)
        self._space.deleted()

    async def list(self) -> Stored:
        def read() -> Stored:
            with self._lock:
                return Stored(
                    frozenset(self._layout.workspaces()),
                    frozenset(self._layout.snapshots()),
                    frozenset(self._volumes.ids()),
                )

        with store_errors("list the workspaces"):
            return await asyncio.to_thread(read)

    # --- volumes ------------------------------------------------------------------------------

    async def create_volume(self, volume_id: str, quota_bytes: int) -> None:
        def create() -> None:
            self._space.check()
            with self._lock:
                self._volumes.create(volume_id, quota_bytes)

        with store_errors("make a volume"):
            await _finished(create)

    async def attach_volume(self, sandbox_id: str, volume_id: str, name: str, *, writable: bool) -> None:
        def attach() -> None:
            if not writable:
                self._volumes.copy(sandbox_id, volume_id, name)
                return
            with self._lock:
                self._volumes.attach(sandbox_id, volume_id, name)

        with store_errors("attach a volume"):
            await _finished(attach)

    # --- trees, for exports and imports -------------------------------------------------------

    def snapshot_folder(self, snapshot_id: str) -> Path:
        return self._reader.snapshot(snapshot_id)

    @contextlib.asynccontextmanager
    async def new_snapshot(self, snapshot_id: str) -> AsyncIterator[Path]:
        target = self._layout.snapshot(snapshot_id)
        with contextlib.ExitStack() as stack:
            with store_errors("make a snapshot"):
                self._space.check()
                staged = await _finished(lambda: stack.enter_context(staged_tree(self._layout)))
            try:
                yield staged
                with store_errors("make a snapshot"):
                    await _finished(lambda: publish_tree(self._sizes, staged, target))
            finally:
                await run_to_completion(asyncio.to_thread(stack.close))

    async def read_archive(self, snapshot_id: str) -> AsyncGenerator[bytes, None]:
        with store_errors("read the snapshot"):
            async with contextlib.aclosing(packed(self._reader.snapshot(snapshot_id))) as pieces:
                async for piece in pieces:
                    yield piece

    async def new_from_archive(
        self, snapshot_id: str, archive: AsyncIterable[bytes], max_bytes: int | None = None
    ) -> None:
        async with self.new_snapshot(snapshot_id) as folder:
            with store_errors("unpack the archive"):
                await unpacked(archive, folder, Limits(max_bytes, check=self._space.check))

    def _is_new(self, workspace_id: str) -> bool:
        return not self._layout.workspace(workspace_id).is_dir()

    def _check_free(self, workspace_id: str) -> None:
        """That the workspace exists, and no sandbox has it."""
        if (sandbox_id := self._layout.sandbox_of.get(workspace_id)) is not None:
            raise Conflict(f"Sandbox {sandbox_id} has workspace {workspace_id}.", retryable=True)
        self._reader.workspace(workspace_id)


def _folder_name(owner: str) -> str:
    if _PLAIN_NAME.fullmatch(owner):
        return owner
    return sha256(owner.encode()).hexdigest()


async def _finished(work: Callable[[], T]) -> T:
    """Run blocking work in a thread, to its end."""
    return await run_to_completion(asyncio.to_thread(work))
