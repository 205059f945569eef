"""Finds workspaces and snapshots, and tells how they differ."""

from __future__ import annotations

import contextlib
from pathlib import Path
from threading import RLock

from sandlot.domain.errors import NotFound
from sandlot.domain.ids import is_snapshot_id
from sandlot.domain.workspaces.snapshots import Difference, no_snapshot_error
from sandlot.providers.docker.workspaces.btrfs import subvolumes, trees
from sandlot.providers.docker.workspaces.btrfs.layout import Layout


class Reader:
    """``lock``: of what changes the layout. Not held while anything is copied or walked through."""

    def __init__(self, layout: Layout, lock: RLock) -> None:
        self._layout = layout
        self._lock = lock

    def workspace(self, workspace_id: str) -> Path:
        path = self._layout.workspace(workspace_id)
        if not path.is_dir():
            raise NotFound(f"Workspace {workspace_id} does not exist.")
        return path

    def snapshot(self, snapshot_id: str) -> Path:
        path = self._layout.snapshot(snapshot_id)
        if not path.is_dir():
            raise no_snapshot_error(snapshot_id)
        return path

    def copy_now(self, workspace_id: str, target: Path) -> None:
        """Keep the workspace's files under this path. A rename at the same time does not matter."""
        with contextlib.ExitStack() as stack:
            with self._lock:
                source = stack.enter_context(subvolumes.opened(self.workspace(workspace_id)))
            folder = stack.enter_context(subvolumes.opened(target.parent))
            subvolumes.snapshot(source, folder, target.name, read_only=True)

    def changed(self, workspace_id: str, snapshot_id: str) -> bool:
        """Compares numbers of transactions, so it costs the same for any number of files."""
        try:
            with subvolumes.opened(self._layout.snapshot(snapshot_id)) as descriptor:
                snapshot = subvolumes.info(descriptor)
        except FileNotFoundError:
            return True
        if self._written_since(workspace_id, snapshot):
            return True
        # A write in the same tick of the clock as one before the snapshot changes no time, and so is
        # not counted before its data is written. A snapshot writes the data of its subvolume.
        with self._layout.staged() as staged:
            self.copy_now(workspace_id, staged)
        return self._written_since(workspace_id, snapshot)

    def _written_since(self, workspace_id: str, snapshot: subvolumes.SubvolumeInfo) -> bool:
        with self._lock, subvolumes.opened(self.workspace(workspace_id)) as descriptor:
            workspace = subvolumes.info(descriptor)
        if snapshot.parent_uuid == workspace.uuid:
            return workspace.written > snapshot.made
        if workspace.parent_uuid == snapshot.uuid:
            return workspace.written > workspace.made
        return True  # neither came from the other

    def compare(self, old_id: str, new_id: str) -> Difference:
        with contextlib.ExitStack() as stack:
            return trees.compare(self._still(stack, old_id), self._still(stack, new_id))

    def _still(self, stack: contextlib.ExitStack, stored_id: str) -> Path:
        """A tree that does not change: a snapshot, or a short-lived one of a workspace."""
        if is_snapshot_id(stored_id):
            return self.snapshot(stored_id)
        staged = stack.enter_context(self._layout.staged())
        self.copy_now(stored_id, staged)
        return staged
