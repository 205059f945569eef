"""Watches the free space where the worker, the engine and sessions keep their files."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from sandlot.domain.capacity.disk import DiskSpace, disk_problem
from sandlot.worker.store.database import Store

log = structlog.get_logger("sandlot.disk")

CHECK_INTERVAL_S = 2.0
DATA_DISK = "the disk of the worker's data folder"
ENGINE_DISK = "Docker's disk"
STORAGE_DISK = "the workspace storage"


class Disk:
    """``problem`` says why the worker takes no new sessions, or is None.

    ``check`` updates it regularly.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        engine_folder: Path | None,
        storage_folder: Path | None,
        min_free_bytes: int | None,
    ) -> None:
        """A folder is ignored while this process cannot read it. None: there is no such folder."""
        self._store = store
        folders = {DATA_DISK: folder, ENGINE_DISK: engine_folder, STORAGE_DISK: storage_folder}
        self._folders = {disk: path for disk, path in folders.items() if path is not None}
        self._min_free = min_free_bytes
        self._low: str | None = None
        # On the disk with the least free space; None before the first check.
        self.free_bytes: int | None = None
        self.spaces: Sequence[DiskSpace] = ()

    @property
    def problem(self) -> str | None:
        if self._store.full:
            return f"{DATA_DISK} is full"
        return self._low

    async def check(self) -> None:
        before = self.problem
        self.spaces = spaces = await asyncio.to_thread(_read_disk_spaces, self._folders)
        self.free_bytes = min((space.free_bytes for space in spaces), default=None)
        problems = (disk_problem(space, self._min_free) for space in spaces)
        self._low = next((problem for problem in problems if problem is not None), None)
        await self._store.check_full()
        if self.problem is not None and before is None:
            folders = [str(folder) for folder in self._folders.values()]
            log.warning("no new sessions: a disk is nearly full", problem=self.problem, folders=folders)
        elif self.problem is None and before is not None:
            log.info("new sessions again: the disk has room")


def _read_disk_spaces(folders: Mapping[str, Path]) -> list[DiskSpace]:
    spaces = []
    for disk, folder in folders.items():
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            continue
        spaces.append(DiskSpace(disk, usage.free, usage.total))
    return spaces
