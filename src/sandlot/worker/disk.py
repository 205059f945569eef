"""Whether there is room on the disks that the worker writes its records to, and the engine its sandboxes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

import structlog

from sandlot.domain.disk import DiskSpace, disk_problem
from sandlot.worker.store import Store

log = structlog.get_logger("sandlot.disk")

LOOK_EVERY_S = 2.0
OWN = "the disk of the worker's data directory"
ENGINES = "the engine's disk"


class Disk:
    """``problem``: why no new sessions are taken, if so; it is looked at again and again."""

    def __init__(
        self, store: Store, folder: Path, engine_folder: Path | None, min_free_bytes: int | None
    ) -> None:
        """``engine_folder``: one that cannot be seen from here does not count."""
        self._store = store
        self._folders = {OWN: folder}
        if engine_folder is not None:
            self._folders[ENGINES] = engine_folder
        self._min_free = min_free_bytes
        self._low: str | None = None
        # Of the one with least; None: not looked yet.
        self.free_bytes: int | None = None

    @property
    def problem(self) -> str | None:
        if self._store.full:
            return f"{OWN} is full"
        return self._low

    async def look(self) -> None:
        before = self.problem
        spaces = await asyncio.to_thread(_seen, self._folders)
        self.free_bytes = min((space.free_bytes for space in spaces), default=None)
        problems = (disk_problem(space, self._min_free) for space in spaces)
        self._low = next((problem for problem in problems if problem is not None), None)
        await self._store.check_full()
        if (self.problem is None) != (before is None):
            folders = [str(folder) for folder in self._folders.values()]
            log.warning("disk", problem=self.problem or "has room again", folders=folders)


def _seen(folders: Mapping[str, Path]) -> list[DiskSpace]:
    spaces = []
    for disk, folder in folders.items():
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            continue
        spaces.append(DiskSpace(disk, usage.free, usage.total))
    return spaces
