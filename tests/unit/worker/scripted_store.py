"""A workspace store in memory. Files are a dictionary, which tests read and change."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from pathlib import Path

from sandlot.domain.errors import Conflict, NotFound
from sandlot.domain.ids import first_workspace_of
from sandlot.domain.workspaces.snapshots import Difference
from sandlot.domain.workspaces.workspace import StoreAbilities, StoreKind
from sandlot.providers.workspaces import Stored

Tree = dict[str, str]


class ScriptedStore:
    """``swaps`` is False for one that is like Docker volumes."""

    def __init__(self) -> None:
        self.workspaces: dict[str, Tree] = {}
        self.snapshots: dict[str, Tree] = {}
        self.attached: dict[str, str] = {}  # sandbox → workspace
        self._folders: dict[str, Path] = {}  # of snapshots, for exports
        self.use(swaps=True)

    def use(self, *, swaps: bool) -> None:
        note = "" if swaps else "Volumes can do less."
        self.abilities = StoreAbilities(StoreKind.MEMORY, swaps, swaps, swaps, note)

    def files(self, sandbox_id: str) -> Tree:
        """The files that a sandbox sees."""
        return self.workspaces.get(self.attached.get(sandbox_id, ""), {})

    def prepare(self, sandbox_id: str, workspace_id: str | None) -> None:
        if workspace_id is None:
            workspace_id = first_workspace_of(sandbox_id)
            self.workspaces[workspace_id] = {}
        elif workspace_id not in self.workspaces:
            raise NotFound(f"no workspace {workspace_id}")
        assert workspace_id not in self.attached.values()
        self.attached[sandbox_id] = workspace_id

    def release(self, sandbox_id: str, keep: Container[str]) -> None:
        workspace_id = self.attached.pop(sandbox_id, None)
        if workspace_id is not None and workspace_id not in keep:
            self.workspaces.pop(workspace_id, None)

    async def attach(self, sandbox_id: str, workspace_id: str) -> None:
        if self.attached.get(sandbox_id) == workspace_id:
            return
        if workspace_id not in self.workspaces:
            raise NotFound(f"no workspace {workspace_id}")
        if workspace_id in self.attached.values():
            raise Conflict(f"another sandbox has {workspace_id}")
        self.workspaces.pop(self.attached.pop(sandbox_id, ""), None)
        self.attached[sandbox_id] = workspace_id

    async def clone(self, snapshot_id: str, workspace_id: str) -> None:
        if snapshot_id not in self.snapshots:
            raise NotFound(f"no snapshot {snapshot_id}")
        self.workspaces[workspace_id] = dict(self.snapshots[snapshot_id])

    async def snapshot(self, workspace_id: str, snapshot_id: str) -> None:
        if workspace_id not in self.workspaces:
            raise NotFound(f"no workspace {workspace_id}")
        self.snapshots[snapshot_id] = dict(self.workspaces[workspace_id])

    async def changed(self, workspace_id: str, snapshot_id: str) -> bool:
        return self.workspaces[workspace_id] != self.snapshots.get(snapshot_id)

    async def used_bytes(self, stored_id: str) -> int | None:
        tree = self.workspaces.get(stored_id, self.snapshots.get(stored_id))
        return None if tree is None else sum(map(len, tree.values()))

    async def compare(self, old_id: str, new_id: str) -> Difference:
        old, new = self.snapshots[old_id], self.workspaces.get(new_id) or self.snapshots[new_id]
        return Difference(
            tuple(sorted(new.keys() - old.keys())),
            tuple(sorted(name for name in new.keys() & old.keys() if new[name] != old[name])),
            tuple(sorted(old.keys() - new.keys())),
        )

    async def delete(self, stored_id: str) -> None:
        assert stored_id not in self.attached.values()
        self.workspaces.pop(stored_id, None)
        self.snapshots.pop(stored_id, None)

    async def create_volume(self, volume_id: str, quota_bytes: int) -> None:
        raise AssertionError("it keeps no volumes")

    async def attach_volume(self, sandbox_id: str, volume_id: str, name: str, *, writable: bool) -> None:
        raise AssertionError("it keeps no volumes")

    def snapshot_folder(self, snapshot_id: str) -> Path:
        """Made when somebody asks for it."""
        if snapshot_id not in self.snapshots:
            raise NotFound(f"no snapshot {snapshot_id}")
        if snapshot_id not in self._folders:
            folder = self._folders[snapshot_id] = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
            for name, text in self.snapshots[snapshot_id].items():
                (folder / name).write_text(text)
        return self._folders[snapshot_id]

    @asynccontextmanager
    async def new_snapshot(self, snapshot_id: str) -> AsyncIterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
        try:
            yield folder
            tree = {path.name: path.read_text() for path in folder.iterdir()}
            self.snapshots.setdefault(snapshot_id, tree)
        finally:
            shutil.rmtree(folder)

    def remove_folders(self) -> None:
        for folder in self._folders.values():
            shutil.rmtree(folder)
        self._folders.clear()

    async def list(self) -> Stored:
        return Stored(frozenset(self.workspaces), frozenset(self.snapshots))
