"""Copies of snapshots that are made ahead, for the next workspaces that begin with them.

To copy a snapshot, the file system writes all that is new to its disk. On a busy disk that takes longer than
all else that a create does. A snapshot never changes, so an earlier copy is as good as a new one, and needs
only a rename. Each snapshot that was copied lately gets one. Nobody else knows of spares: they go with their
snapshot, and all of them at the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Final

import structlog

from sandlot.domain.errors import NotFound, SandlotError
from sandlot.providers.docker.workspaces.btrfs import removing, subvolumes
from sandlot.providers.docker.workspaces.btrfs.errors import store_errors
from sandlot.providers.docker.workspaces.btrfs.layout import Layout
from sandlot.providers.docker.workspaces.btrfs.reading import Reader
from sandlot.providers.docker.workspaces.btrfs.sizes import Sizes
from sandlot.providers.docker.workspaces.btrfs.steps import StoreStep, reached
from sandlot.providers.waiting import run_to_completion

log = structlog.get_logger("sandlot.workspaces")

# Each shares its blocks with its snapshot, and takes some dozens of KiB of its own.
MAX_SPARES: Final = 16
# Not at once: the create or restore that has just used the last copy would wait for the same disk.
MAKE_AFTER_S: Final = 0.5


class Spares:
    """Each has its limit already. ``check_space``: raises ``StorageFull`` if there is no room for copies."""

    def __init__(self, layout: Layout, sizes: Sizes, reader: Reader, check_space: Callable[[], None]) -> None:
        self._layout = layout
        self._sizes = sizes
        self._reader = reader
        self._check_space = check_space
        self._lock = Lock()  # of the folder and of ``_made``
        self._made: dict[str, None] = {}  # the ids of their snapshots, the oldest first
        self._making: dict[str, asyncio.Task[None]] = {}

    def take(self, snapshot_id: str, target: Path) -> bool:
        """Move the snapshot's spare to this path. False if it has none now."""
        with self._lock:
            if snapshot_id not in self._made:
                return False
            del self._made[snapshot_id]
            try:
                self._layout.spare(snapshot_id).rename(target)
            except FileNotFoundError:  # the store was opened again
                return False
            return True

    def make_soon(self, snapshot_id: str) -> None:
        """Make a spare of a snapshot in the background, unless there is one."""
        if snapshot_id not in self._making:
            task = asyncio.create_task(self._make_later(snapshot_id), name=f"copy {snapshot_id} ahead")
            self._making[snapshot_id] = task
            task.add_done_callback(lambda _: self._making.pop(snapshot_id))

    def drop(self, snapshot_id: str) -> None:
        """Delete the spare of a snapshot that was deleted."""
        with self._lock:
            self._drop(snapshot_id)

    async def finish(self) -> None:
        """Wait until all spares that were asked for are made."""
        if self._making:
            await asyncio.wait(set(self._making.values()))

    async def stop(self) -> None:
        for task in self._making.values():
            task.cancel()
        await self.finish()

    async def _make_later(self, snapshot_id: str) -> None:
        await asyncio.sleep(MAKE_AFTER_S)
        try:
            with store_errors("copy a snapshot ahead"):
                await run_to_completion(asyncio.to_thread(self._make, snapshot_id))
        except NotFound:
            pass  # it was deleted meanwhile
        except SandlotError as error:
            log.info("no copy of a snapshot was made ahead", id=snapshot_id, error=error.message)

    def _make(self, snapshot_id: str) -> None:
        if snapshot_id in self._made:
            return
        self._check_space()
        with self._layout.staged() as staged:
            source = self._reader.snapshot(snapshot_id)
            subvolumes.copy(source, staged, read_only=False)
            self._sizes.inherit(source, staged)
            reached(StoreStep.SPARE_COPIED)
            with self._lock:
                self._reader.snapshot(snapshot_id)  # once it is gone, no one would delete its spare
                staged.rename(self._layout.spare(snapshot_id))
                self._made[snapshot_id] = None
                for surplus in list(self._made)[:-MAX_SPARES]:
                    self._drop(surplus)
        reached(StoreStep.SPARE_MADE)

    def _drop(self, snapshot_id: str) -> None:
        if snapshot_id in self._made:
            del self._made[snapshot_id]
            spare = self._layout.spare(snapshot_id)
            removing.remove(spare.parent, spare.name)
