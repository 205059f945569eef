"""Where volumes are, and the steps that give them to sandboxes and take them back.

    volumes/<id>                          a volume that no sandbox writes to
    sandboxes/<id>/parent/volumes/<name>  a volume that the sandbox writes to, or a read-only copy of one
    sandboxes/<id>/writes/<name>          a link whose text is the id of the volume that it writes to

A link is made before its volume moves to the sandbox, and removed after it is back. So a volume is with the
sandbox if there is a link and the files are there too, and a link without files means nothing. No volume is
ever in a folder that is about to be deleted: ``take_back`` comes first.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from threading import RLock
from typing import Final

from sandlot.domain.errors import Conflict, NotFound
from sandlot.domain.ids import is_name, is_volume_id
from sandlot.providers.docker.workspaces.btrfs import subvolumes
from sandlot.providers.docker.workspaces.btrfs.layout import VOLUMES, Layout, move
from sandlot.providers.docker.workspaces.btrfs.seeds.images import staged_tree
from sandlot.providers.docker.workspaces.btrfs.sizes import Sizes
from sandlot.providers.docker.workspaces.btrfs.steps import StoreStep, reached

_NOTES: Final = "writes"


class VolumeFolders:
    """Not safe for threads, except where it says so: the store takes its lock.

    ``sandbox_of``: which sandbox writes to which volume.
    """

    def __init__(self, layout: Layout, sizes: Sizes, lock: RLock) -> None:
        self._layout = layout
        self._sizes = sizes
        self._lock = lock
        self.sandbox_of: dict[str, str] = {}

    def open(self) -> None:
        """Find out where volumes are, also after a process that died in the middle of a step."""
        self.sandbox_of.clear()
        for sandbox_id in self._layout.sandboxes():
            for name, volume_id in self._notes(sandbox_id).items():
                if self._attached(sandbox_id, name).is_dir():
                    self.sandbox_of[volume_id] = sandbox_id
                else:
                    self._note(sandbox_id, name).unlink()

    def ids(self) -> set[str]:
        detached = filter(is_volume_id, os.listdir(self._layout.folder("volumes")))
        return {*detached, *self.sandbox_of}

    def path(self, volume_id: str) -> Path:
        """Where a volume is now."""
        path = self._detached(volume_id)
        if (sandbox_id := self.sandbox_of.get(volume_id)) is not None:
            names = self._notes(sandbox_id)
            path = next(self._attached(sandbox_id, name) for name in names if names[name] == volume_id)
        if not path.is_dir():
            raise NotFound(f"Volume {volume_id} does not exist.")
        return path

    def create(self, volume_id: str, quota_bytes: int) -> None:
        if volume_id in self.ids():
            return
        with staged_tree(self._layout) as staged:
            self._sizes.limit(staged, quota_bytes)
            reached(StoreStep.VOLUME_MADE)
            staged.rename(self._detached(volume_id))
        reached(StoreStep.VOLUME_PUBLISHED)

    def attach(self, sandbox_id: str, volume_id: str, name: str) -> None:
        if (other := self.sandbox_of.get(volume_id)) == sandbox_id:
            return
        if other is not None:
            raise Conflict(f"Sandbox {other} writes to volume {volume_id}.", retryable=True)
        source, target = self.path(volume_id), self._target(sandbox_id, name)
        note = self._note(sandbox_id, name)
        note.parent.mkdir(mode=0o700, exist_ok=True)
        note.symlink_to(volume_id)
        reached(StoreStep.VOLUME_NOTED)
        try:
            move(source, target)
        except OSError:
            note.unlink()
            raise
        self.sandbox_of[volume_id] = sandbox_id
        reached(StoreStep.VOLUME_ATTACHED)

    def copy(self, sandbox_id: str, volume_id: str, name: str) -> None:
        """Takes the lock only to find the volume: what its writer has in memory is written first, which may
        take long.
        """
        with contextlib.ExitStack() as stack:
            with self._lock:
                source = stack.enter_context(subvolumes.opened(self.path(volume_id)))
                target = self._target(sandbox_id, name)
                folder = stack.enter_context(subvolumes.opened(target.parent))
            if target.is_dir():
                return
            subvolumes.snapshot(source, folder, name, read_only=True)
        # The kernel refuses all writes already. A sandbox that could undo that could still not fill the disk.
        self._sizes.limit(target, 0)
        reached(StoreStep.VOLUME_COPIED)

    def take_back(self, sandbox_id: str) -> None:
        """Free the volumes that a sandbox writes to. No process of it may be left."""
        for name, volume_id in self._notes(sandbox_id).items():
            with contextlib.suppress(FileNotFoundError):  # back already, when an earlier call was killed
                move(self._attached(sandbox_id, name), self._detached(volume_id))
            reached(StoreStep.VOLUME_BACK)
            self._note(sandbox_id, name).unlink()
            self.sandbox_of.pop(volume_id, None)

    def _detached(self, volume_id: str) -> Path:
        if not is_volume_id(volume_id):
            raise ValueError("not a volume's id")
        return self._layout.folder("volumes") / volume_id

    def _attached(self, sandbox_id: str, name: str) -> Path:
        if not is_name(name):
            raise ValueError("not a volume's name")
        return self._layout.sandbox(sandbox_id) / "parent" / VOLUMES / name

    def _target(self, sandbox_id: str, name: str) -> Path:
        target = self._attached(sandbox_id, name)
        if not self._layout.sandbox(sandbox_id).exists():
            raise NotFound(f"Sandbox {sandbox_id} has no storage here.")
        if not target.parent.exists():  # made by a version without volumes
            target.parent.mkdir()
            target.parent.chmod(0o755)
        return target

    def _note(self, sandbox_id: str, name: str) -> Path:
        return self._layout.sandbox(sandbox_id) / _NOTES / name

    def _notes(self, sandbox_id: str) -> dict[str, str]:
        """The ids of the volumes that a sandbox writes to, by name."""
        folder = self._layout.sandbox(sandbox_id) / _NOTES
        try:
            return {name: os.readlink(folder / name) for name in os.listdir(folder)}
        except FileNotFoundError:
            return {}
