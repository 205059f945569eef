"""Whether there is room on the disk that the worker writes its records to."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import structlog

from sandlot.worker.store import Store

log = structlog.get_logger("sandlot.disk")

LOOK_EVERY_S = 2.0
MIB = 1024 * 1024


class Disk:
    """``problem``: what is wrong with it, if anything is; it is looked at again and again."""

    def __init__(self, store: Store, folder: Path, min_free_bytes: int) -> None:
        self._store = store
        self._folder = folder
        self._min_free = min_free_bytes
        self._low: str | None = None

    @property
    def problem(self) -> str | None:
        if self._store.full:
            return "the disk of the worker's data directory is full"
        return self._low

    async def look(self) -> None:
        before = self.problem
        free = await asyncio.to_thread(_free, self._folder)
        self._low = None
        if free < self._min_free:
            self._low = (
                f"the disk of the worker's data directory has {free // MIB} MiB left, "
                f"less than {self._min_free // MIB} MiB (SANDLOT_MIN_FREE_BYTES)"
            )
        await self._store.check_full()
        if self.problem != before:
            log.warning("disk", problem=self.problem or "has room again")


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
