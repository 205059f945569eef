"""The folders of the store, and the steps that change them.

    workspaces/<id>                 a workspace that no sandbox has
    snapshots/<id>                  a snapshot, read-only
    sandboxes/<id>/has              a link whose text is the id of the sandbox's workspace
    sandboxes/<id>/gets             the same of the one that it is about to get
    sandboxes/<id>/parent/          belongs to root; what the sandbox sees as /sandbox
    sandboxes/<id>/parent/workspace its workspace
    sandboxes/<id>/parent/volumes/  its volumes, and sandboxes/<id>/writes/: see ``volumes.folders``
    volumes/<id>                    a volume that no sandbox writes to
    seeds/<image>                   the image's own files, read-only
    mounts/<sandbox>                where its parent folder is mounted for its user
    spares/<snapshot>               a copy of a snapshot for a workspace to come (spares.py)
    staging/, trash/                what is half made or half deleted; emptied at each start, as spares/ is

Whatever becomes visible does so by one rename or one call of the kernel. Attaching needs several: ``gets``
says that it has begun, and ``finish_attach`` does all that is missing, also after a restart. Renaming the
workspace away and another into its place swaps the files of a running sandbox. Its user cannot do that,
since the parent folder belongs to root.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandlot.domain.ids import is_sandbox_id, is_snapshot_id, is_workspace_id
from sandlot.providers.docker.workspaces.btrfs import mounts, removing, subvolumes
from sandlot.providers.docker.workspaces.btrfs.errors import is_full, unless_full
from sandlot.providers.docker.workspaces.btrfs.steps import StoreStep, reached

_EMPTIED: Final = ("spares", "staging", "trash")
_FOLDERS: Final = ("workspaces", "snapshots", "volumes", "sandboxes", "seeds", "mounts", *_EMPTIED)
WORKSPACE: Final = "workspace"  # its name in /sandbox
VOLUMES: Final = "volumes"  # the name of their folder there


class Layout:
    """Not safe for threads by itself, except where it says so: the store takes its lock.

    ``sandbox_of``: which sandbox has which workspace.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sandbox_of: dict[str, str] = {}
        # Names in the trash: what attached workspaces have replaced, and what could not be deleted yet.
        self.old_files: deque[str] = deque()

    def open(self) -> None:
        """Make the folders, and finish or undo what a dead process left half done."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(self.root.stat().st_mode) != 0o700:
            self.root.chmod(0o700)
        for name in _FOLDERS:
            (self.root / name).mkdir(mode=0o700, exist_ok=True)
        for name in _EMPTIED:
            removing.remove_all_in(self.folder(name))
        self.sandbox_of.clear()
        for sandbox_id in self.sandboxes():
            with unless_full("finish what a dead worker began"):
                self.finish_attach(sandbox_id)
                self.delete_old_files()
            workspace_id = self.workspace_of(sandbox_id)
            # Without files it is one whose release was killed after they were kept.
            if workspace_id is not None and self._attached(sandbox_id).is_dir():
                self.sandbox_of[workspace_id] = sandbox_id
        for mount_point in list(self.folder("mounts").iterdir()):
            if mount_point.name not in self.sandboxes():
                self._remove_mount(mount_point)

    # --- where things are ---------------------------------------------------------------------

    def folder(self, name: str) -> Path:
        return self.root / name

    def sandbox(self, sandbox_id: str) -> Path:
        if not is_sandbox_id(sandbox_id):
            raise ValueError("not a sandbox's id")
        return self.folder("sandboxes") / sandbox_id

    def mount_point(self, sandbox_id: str) -> Path:
        return self.folder("mounts") / self.sandbox(sandbox_id).name

    def snapshot(self, snapshot_id: str) -> Path:
        if not is_snapshot_id(snapshot_id):
            raise ValueError("not a snapshot's id")
        return self.folder("snapshots") / snapshot_id

    def spare(self, snapshot_id: str) -> Path:
        return self.folder("spares") / self.snapshot(snapshot_id).name

    def detached(self, workspace_id: str) -> Path:
        if not is_workspace_id(workspace_id):
            raise ValueError("not a workspace's id")
        return self.folder("workspaces") / workspace_id

    def workspace(self, workspace_id: str) -> Path:
        """Where a workspace is now. Nothing may be there."""
        sandbox_id = self.sandbox_of.get(workspace_id)
        return self.detached(workspace_id) if sandbox_id is None else self._attached(sandbox_id)

    def stored(self, stored_id: str) -> Path:
        return self.snapshot(stored_id) if is_snapshot_id(stored_id) else self.workspace(stored_id)

    def seed(self, name: str) -> Path:
        return self.folder("seeds") / name

    def seeds(self) -> list[Path]:
        return list(self.folder("seeds").iterdir())

    def _attached(self, sandbox_id: str) -> Path:
        return self.sandbox(sandbox_id) / "parent" / WORKSPACE

    def sandboxes(self) -> set[str]:
        return set(filter(is_sandbox_id, os.listdir(self.folder("sandboxes"))))

    def workspaces(self) -> set[str]:
        detached = filter(is_workspace_id, os.listdir(self.folder("workspaces")))
        return {*detached, *self.sandbox_of}

    def snapshots(self) -> set[str]:
        return set(filter(is_snapshot_id, os.listdir(self.folder("snapshots"))))

    def workspace_of(self, sandbox_id: str) -> str | None:
        try:
            return os.readlink(self.sandbox(sandbox_id) / "has")
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def staged(self) -> Iterator[Path]:
        """A name in ``staging`` that is nobody else's. What is left there afterwards is removed."""
        name = secrets.token_hex(8)
        try:
            yield self.folder("staging") / name
        finally:
            removing.remove(self.folder("staging"), name)

    # --- steps --------------------------------------------------------------------------------

    def stage_sandbox(self, staged: Path, workspace_id: str, *, existing: bool) -> Path:
        """Make what will be a sandbox's folder. Returns where its first workspace goes."""
        staged.mkdir(mode=0o700)
        (staged / "parent").mkdir()
        (staged / "parent").chmod(0o755)
        (staged / "parent" / VOLUMES).mkdir()
        (staged / "parent" / VOLUMES).chmod(0o755)
        (staged / ("gets" if existing else "has")).symlink_to(workspace_id)
        return staged / "parent" / WORKSPACE

    def publish_sandbox(self, staged: Path, sandbox_id: str) -> None:
        staged.rename(self.sandbox(sandbox_id))
        reached(StoreStep.SANDBOX_PUBLISHED)
        self.finish_attach(sandbox_id)
        if (workspace_id := self.workspace_of(sandbox_id)) is not None:
            self.sandbox_of[workspace_id] = sandbox_id

    def mount(self, sandbox_id: str, uid: int) -> Path:
        target = self.mount_point(sandbox_id)
        target.mkdir(mode=0o700, exist_ok=True)
        mounts.unmount(target)
        reached(StoreStep.MOUNT_POINT_MADE)
        mounts.mount_for(uid, self.sandbox(sandbox_id) / "parent", target)
        reached(StoreStep.MOUNTED)
        return target

    def attach(self, sandbox_id: str, workspace_id: str) -> None:
        (self.sandbox(sandbox_id) / "gets").symlink_to(workspace_id)
        reached(StoreStep.ATTACH_NOTED)
        self.finish_attach(sandbox_id)

    def finish_attach(self, sandbox_id: str) -> None:
        """Do what is missing until the sandbox has the workspace that it was about to get.

        ``delete_old_files`` must follow, not necessarily at once.
        """
        folder = self.sandbox(sandbox_id)
        try:
            workspace_id = os.readlink(folder / "gets")
        except FileNotFoundError:
            return
        before = self.workspace_of(sandbox_id)
        if self.detached(workspace_id).is_dir():
            if (old_files := self._discard(self._attached(sandbox_id))) is not None:
                self.old_files.append(old_files)
            reached(StoreStep.OLD_FILES_AWAY)
            move(self.detached(workspace_id), self._attached(sandbox_id))
            reached(StoreStep.NEW_FILES_IN_PLACE)
        (folder / "gets").rename(folder / "has")
        self.sandbox_of.pop(before or "", None)
        self.sandbox_of[workspace_id] = sandbox_id
        reached(StoreStep.ATTACHED)

    def delete_old_files(self) -> None:
        """Delete what attached workspaces have replaced, and what could not be deleted before.

        Safe for threads.
        """
        while self.old_files:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._empty_trash(self.old_files.popleft())

    def release(self, sandbox_id: str, *, keep: bool) -> None:
        """Remove a sandbox's folder and mount. ``keep``: its workspace stays. Its volumes must be back."""
        self._remove_mount(self.mount_point(sandbox_id))
        if not self.sandbox(sandbox_id).exists():
            return
        workspace_id = self.workspace_of(sandbox_id)
        if keep and workspace_id is not None:
            with contextlib.suppress(FileNotFoundError):  # kept by an earlier release, which was killed
                move(self._attached(sandbox_id), self.detached(workspace_id))
            reached(StoreStep.FILES_KEPT)
        trash = self._discard(self.sandbox(sandbox_id))
        if self.sandbox_of.get(workspace_id or "") == sandbox_id:
            del self.sandbox_of[workspace_id or ""]
        self._empty_trash(trash)

    def delete_workspace(self, workspace_id: str) -> None:
        self._empty_trash(self._discard(self.detached(workspace_id)))

    def _remove_mount(self, target: Path) -> None:
        mounts.unmount(target)
        reached(StoreStep.UNMOUNTED)
        with contextlib.suppress(FileNotFoundError):
            target.rmdir()

    def _discard(self, path: Path) -> str | None:
        """Move to the trash. Returns the name there; None if nothing is left to delete."""
        name = secrets.token_hex(8)
        try:
            move(path, self.folder("trash") / name)
        except FileNotFoundError:
            return None
        except OSError as error:
            if not is_full(error):
                raise
            # The file system keeps room for deleting, even if it has none left for a rename.
            removing.remove(path.parent, path.name)
            return None
        reached(StoreStep.IN_TRASH)
        return name

    def _empty_trash(self, name: str | None) -> None:
        if name is None:
            return
        try:
            removing.remove(self.folder("trash"), name)
        except OSError:
            self.old_files.append(name)  # nobody else knows the name: its space would be gone until a restart
            raise


def move(source: Path, target: Path) -> None:
    """Rename to a name that is free."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        # The files' user has made the subvolume read-only. Such a one cannot be moved.
        with subvolumes.opened(source) as descriptor:
            subvolumes.make_writable(descriptor)
        source.rename(target)
